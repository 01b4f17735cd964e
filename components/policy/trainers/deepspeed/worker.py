"""One process of a DeepSpeed update; DeepSpeed's launcher starts it with the folder that `trainer` wrote.

All processes read the same forest and make the same batches of it, of which each computes its share. The weights of a
step's terms sum to 1 over all processes, so their gradients add up to the one that a single process has. Every process
calls forward and backward equally often: a batch without terms stays in the graph and adds nothing, for ZeRO waits in
each layer for every process (deepspeedai/DeepSpeed#4910).
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

if __name__ == "__main__":
    sys.modules["mlflow"] = None  # type: ignore[assignment]  # where it is installed, DeepSpeed imports it: seconds

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, safe_set_full_optimizer_state
from torch import Tensor, nn
from torch import distributed as dist
from transformers.integrations import HfDeepSpeedConfig

from components.errors import UserError
from components.policy.packing.batches import Batch, no_terms
from components.policy.trainers.deepspeed.params import DeepSpeedParams
from components.policy.trainers.learner import Learner
from components.policy.trainers.loss import Stats, batch_loss
from components.policy.trainers.steps import take_steps
from components.policy.trainers.trainable import (
    Moments,
    load_moments,
    load_trainable,
    save_moments,
    save_policy,
    trained_of,
    whole_shape,
)
from components.registry import load_plugins
from components.storage import read_json, read_parquet, write_json
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from components.tree.schema import NODE_SCHEMA

T = TypeVar("T")
MOMENTS = ("exp_avg", "exp_avg_sq")


class Within(nn.Module):
    """Runs a function of the model as a forward pass, so that DeepSpeed sees every use of the model's weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Any], T]) -> T:
        return function(self.model)


class Zero(Learner):
    """DeepSpeed's engine around the model, and Adam's moments in it.

    Args:
        model: What requires a gradient is trained.
        settings: Optimiser, and what ZeRO parts.
        temperature: See `batch_loss`.
        policy: Checkpoint whose moments Adam goes on from; None: they start at zero.
    """

    def __init__(self, model: Any, settings: DeepSpeedParams, temperature: float, policy: Path | None) -> None:
        super().__init__(model)
        self.settings, self.temperature = settings, temperature
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.trained = trained_of(model)
        self.adam = torch.optim.Adam(self.trained.values(), lr=0.0)
        self.engine: Any = deepspeed.initialize(
            model=Within(model), optimizer=self.adam, config=engine_config(settings)
        )[0]
        self._start_from({} if policy is None else load_moments(policy, self.trained))

    def within(self, function: Callable[[Any], T]) -> T:
        result: T = self.engine(function)
        return result

    def of_first(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, device=self.engine.device)
        return values[0]

    def step(self, batches: list[Batch]) -> tuple[Stats, float]:
        stats = Stats()
        for index, batch in enumerate(batches):
            self.engine.set_gradient_accumulation_boundary(index + 1 == len(batches))
            given = batch.to(self.engine.device)
            loss, part = self.within(
                lambda model, given=given: batch_loss(model, given, self.settings, self.temperature)  # type: ignore[misc]
            )
            self.engine.backward(loss * self.ranks)  # DeepSpeed takes the mean over processes; this is a sum
            stats += part
        if self.settings.zero_stage == 0:
            norm = float(nn.utils.clip_grad_norm_(self.trained.values(), self.settings.max_grad_norm))
        self.engine.step()
        if self.settings.zero_stage > 0:
            norm = float(self.engine.get_global_grad_norm())
        return self._of_all(stats), norm

    def _of_all(self, stats: Stats) -> Stats:
        """The counts of all processes, in each of them."""
        table = torch.zeros(self.ranks, len(astuple(stats)), dtype=torch.float64, device=self.engine.device)
        table[self.rank] = torch.tensor(astuple(stats))
        dist.all_reduce(table)
        return sum((Stats(*row) for row in table.tolist()), Stats())

    def whole(self, name: str, key: str | None = None) -> Tensor:
        """A parameter, or one of its moments, put together from all processes; fp32."""
        parameter = self.trained[name]
        if self.settings.zero_stage == 0:
            tensor = parameter if key is None else self.adam.state[parameter][key]
        elif key is None:
            tensor = safe_get_full_fp32_param(parameter)
        else:
            tensor = safe_get_full_optimizer_state(parameter, key)
        whole: Tensor = tensor.detach().float().cpu().clone()
        return whole

    def save(self, policy: Path, target: Path, fresh: bool) -> None:
        """Writes the checkpoint in the first process, and in each process a part of the moments."""
        weights, moments, taken = {}, {}, next(iter(self.adam.state.values()))["step"]
        for index, name in enumerate(self.trained):
            weight = self.whole(name)
            state = {"step": torch.tensor(float(taken))} | {key: self.whole(name, key) for key in MOMENTS}
            if self.rank == 0:
                weights[name] = weight
            if index % self.ranks == self.rank:
                moments[name] = state
        if self.rank == 0:
            save_policy(self.model, weights, self.settings, policy, target, fresh)
        dist.barrier()
        save_moments(moments, target, self.rank, self.ranks)
        dist.barrier()

    def _start_from(self, moments: Moments) -> None:
        """Sets the moments; a step without terms, at the learning rate 0, has DeepSpeed allocate them first."""
        self.step([no_terms()])
        for name, parameter in self.trained.items():
            for key in MOMENTS:
                value = moments[name][key] if name in moments else torch.zeros(whole_shape(parameter))
                if self.settings.zero_stage == 0:
                    self.adam.state[parameter][key].copy_(value)
                else:
                    safe_set_full_optimizer_state(parameter, value.to(self.engine.device), key)
        taken = next((float(state["step"]) for state in moments.values()), 0.0)
        for state in self.adam.state.values():
            state["step"] = torch.tensor(taken)
        for group in self.adam.param_groups:
            group["lr"] = self.settings.learning_rate


def engine_config(settings: DeepSpeedParams) -> dict[str, Any]:
    """DeepSpeed's configuration. Batch sizes are the caller's matter, who says when a step's last batch comes."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": settings.zero_stage},
        "zero_allow_untested_optimizer": True,  # Adam of torch: DeepSpeed's own would be compiled at first use
    }
    if settings.zero_stage > 0:
        config["gradient_clipping"] = settings.max_grad_norm
    if settings.offload:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    if settings.dtype == "bf16":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return config


def run(folder: Path) -> None:
    """Takes the steps that the folder's job asks for; the first process writes the metrics last."""
    job, kept = read_json(folder / "job.json"), _Kept()
    log = logging.getLogger("trace")
    log.handlers, log.level, log.propagate = [kept], logging.INFO, False
    load_plugins(job["plugins"])
    settings = DeepSpeedParams.model_validate(job["settings"])
    policy, target, seed, fresh = Path(job["policy"]), Path(job["target"]), job["seed"], job["fresh"]
    torch.set_num_threads(job["threads"])
    parted = HfDeepSpeedConfig(engine_config(settings)) if settings.zero_stage == 3 else None  # while it is loaded, too
    model = load_trainable(policy, settings, seed, fresh)
    learner = Zero(model, settings, job["temperature"], None if fresh else policy)
    del parted
    forest = Forest.from_table(read_parquet(folder / "forest.parquet", NODE_SCHEMA))
    terms, begin = terms_of(forest, settings.advantage), time.perf_counter()
    metrics = take_steps(learner, forest, terms, settings, job["temperature"], seed)
    seconds, count = time.perf_counter() - begin, int(metrics["optimizer_steps"])
    learner.save(policy, target, fresh)
    print(f"process {learner.rank}: {seconds:.3f} s for {count} steps, {peak_memory() / 2**20:.0f} MiB at the most")
    if learner.rank == 0:
        write_json(folder / "log.json", kept.lines)
        write_json(folder / "metrics.json", metrics)


class _Kept(logging.Handler):
    """Keeps what is logged, for the run's own log, and prints it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))
        print(record.getMessage(), flush=True)


def peak_memory() -> int:
    """The most memory that this process took so far, in bytes: of its GPU, or of the host where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folders: list[Path]) -> None:
    """Joins the other processes, and runs the jobs of some folders; an error of one line is written there."""
    Thread(target=_end_with_parent, daemon=True).start()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference only, and compiled for minutes
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo", auto_mpi_discovery=False)
    for folder in folders:
        try:
            run(folder)
        except (UserError, FloatingPointError) as error:
            write_json(folder / "error.json", {"kind": type(error).__name__, "message": str(error)})
            raise
    dist.destroy_process_group()


def _end_with_parent() -> None:
    """Blocks until the trainer's end of the pipe is closed, which its death does, however it came."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
