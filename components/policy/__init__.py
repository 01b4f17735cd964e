"""The policy: who samples (engines), who learns (trainers), by the names used in params.yaml.

The model libraries are imported only when one is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from components.config import EngineParams, Params
    from components.environments import Environment
    from components.policy.base import Engine, Trainer
    from components.policy.rollout import Sampler


def _transformers(settings: EngineParams) -> Engine:
    """In the run's own process, on the CPU; the run's seed decides every bit."""
    from components.policy.engine_transformers import TransformersEngine

    return TransformersEngine(settings)


def _vllm(settings: EngineParams) -> Engine:
    """vLLM: its servers, started by the run or running already, or inside the process."""
    if settings.servers == 0:
        from components.policy.engine_vllm_colocated import ColocatedVllmEngine

        return ColocatedVllmEngine(settings)
    from components.policy.engine_vllm import VllmEngine

    return VllmEngine(settings)


def _torch(params: Params) -> Trainer:
    """One process on the CPU: clipped token loss and Adam."""
    from components.policy.trainer_torch import TorchTrainer

    return TorchTrainer(params.update, params.engine.temperature)


def _deepspeed(params: Params) -> Trainer:
    """The same step on several processes, by DeepSpeed ZeRO 0 to 3."""
    from components.policy.trainer_deepspeed import DeepSpeedTrainer

    return DeepSpeedTrainer(params.update, params.engine.temperature, params.run.threads)


ENGINES: dict[str, Callable[[EngineParams], Engine]] = {"transformers": _transformers, "vllm": _vllm}
TRAINERS: dict[str, Callable[[Params], Trainer]] = {"torch": _torch, "deepspeed": _deepspeed}


_making = threading.Lock()


@lru_cache(maxsize=1)
def _engine(settings: EngineParams) -> Engine:
    return ENGINES[settings.name](settings)


def make_environment(params: Params) -> Environment:
    """The environment that `params.environment.name` registers."""
    from components.environments import ENVIRONMENTS

    cache = (Path(params.run.data_dir) / "cache").absolute()
    environment = ENVIRONMENTS[params.environment.name](params.environment, cache)
    if params.run.cluster is None or not params.run.cluster_steps:
        return environment
    from components.workers.cluster import RemoteSteps

    return RemoteSteps(params.run.cluster, environment, params.environment, cache)


def make_sampler(params: Params, policy: Path, version: int) -> Sampler:
    """A sampler whose engine holds the weights of `policy`; one engine serves the whole process, all its threads."""
    import torch

    from components.policy.renderer import Renderer
    from components.policy.rollout import Sampler

    torch.set_num_threads(params.run.threads)
    with _making:
        engine = _engine(params.engine)
        engine.load(policy)
        environment = make_environment(params)
        return Sampler(engine, Renderer.load(policy), environment, params.engine, version)


def make_trainer(params: Params) -> Trainer:
    """The trainer that `params.update.trainer` registers."""
    return TRAINERS[params.update.trainer](params)
