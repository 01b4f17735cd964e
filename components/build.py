"""What the parameters of a run name, made: the one place that knows all of them."""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from components.allocation.arm import Arm
from components.allocation.arms import ARMS
from components.environments import ENVIRONMENTS
from components.environments.base import Environment, EnvironmentParams
from components.policy.engines import ENGINES
from components.policy.engines.base import Engine, EngineParams
from components.policy.trainers import TRAINERS
from components.policy.trainers.base import Trainer
from components.predictor.base import Predictor
from components.predictor.models import PREDICTORS

if TYPE_CHECKING:
    from components.params.root import Params
    from components.policy.rollout import Sampler

_making = threading.Lock()


def make_arm(params: Params) -> Arm:
    """The arm that `allocation.arm` names."""
    return ARMS[params.allocation.arm](params.allocation)


def make_environment(params: Params) -> Environment:
    """The environment that `environment.name` names; on a cluster where `run.cluster_steps` says so."""
    cache = (Path(params.run.data_dir) / "cache").absolute()
    environment = environment_of(params.environment, cache)
    if params.run.cluster is None or not params.run.cluster_steps:
        return environment
    from components.workers.cluster import RemoteSteps

    return RemoteSteps(params.run.cluster, environment, params.plugins)


def environment_of(section: EnvironmentParams, cache: Path) -> Environment:
    """The environment of a section of the parameters, on this machine."""
    return ENVIRONMENTS[section.name](section, cache)


def use_threads(params: Params) -> None:
    """Sets the threads of the numerical library: the order of sums depends on them, so results do."""
    import torch

    torch.set_num_threads(params.run.threads)


@lru_cache(maxsize=1)
def _engine(section: EngineParams) -> Engine:
    return ENGINES[section.name].make(section)


def make_sampler(params: Params, policy: Path, version: int) -> Sampler:
    """A sampler whose engine holds the weights of `policy`; one engine serves the whole process, all its threads."""
    from components.policy.renderer import Renderer
    from components.policy.rollout import Sampler

    use_threads(params)
    with _making:
        engine = _engine(params.engine)
        engine.load(policy)
        return Sampler(engine, Renderer.load(policy), make_environment(params), params.engine, version)


def make_trainer(params: Params) -> Trainer:
    """The trainer that `update.name` names."""
    use_threads(params)
    return TRAINERS[params.update.name].make(params.update, params.engine.temperature, params.run.threads)


def make_predictor(params: Params, policy: Path, state: Path | None = None) -> Predictor:
    """The predictor that `predictor.name` names, with its saved state where there is one."""
    use_threads(params)
    kind = PREDICTORS[params.predictor.name]
    predictor = kind.make(params.predictor, policy, lambda: make_sampler(params, policy, 0), params.run.seed)
    if state is not None:
        predictor.load(state)
    return predictor
