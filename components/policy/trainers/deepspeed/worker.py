"""One process of a DeepSpeed update; DeepSpeed's launcher starts it with the folder that `trainer_deepspeed` wrote.

All processes read the same forest and make the same batches of it, of which each computes its share. The weights of a
step's terms sum to 1 over all processes, so their gradients add up to the one that a single process has. Every process
calls forward and backward equally often: a batch without terms stays in the graph and adds nothing, for ZeRO waits in
each layer for every process (deepspeedai/DeepSpeed#4910).
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

if __name__ == "__main__":
    sys.modules["mlflow"] = None  # type: ignore[assignment]  # where it is installed, DeepSpeed imports it: seconds

import deepspeed
import numpy as np
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, safe_set_full_optimizer_state
from torch import Tensor, nn
from torch import distributed as dist
from transformers.integrations import HfDeepSpeedConfig

from components.errors import UserError
from components.policy.packing.batches import Batch, micro_batches, minibatches, no_terms
from components.policy.trainers.deepspeed import DeepSpeedParams
from components.policy.trainers.loss import Stats, batch_loss, check_finite, mean_of_steps
from components.policy.trainers.mismatch import first_mismatch, measure_mismatch
from components.policy.trainers.self_check import choose_packing
from components.policy.trainers.trainable import Moments, load_moments, load_trainable, save_moments, save_policy
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


class Learner:
    """The engine around the model, and Adam's moments in it.

    Args:
        model: What requires a gradient is trained.
        settings: Optimiser, and what ZeRO parts.
        temperature: See `batch_loss`.
        moments: Adam's by parameter name; those that are missing start at zero.
    """

    def __init__(self, model: Any, settings: DeepSpeedParams, temperature: float, moments: Moments) -> None:
        self.settings, self.ranks = settings, dist.get_world_size()
        self.trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.adam = torch.optim.Adam(self.trained.values(), lr=0.0)
        self.model, self.temperature = model, temperature
        self.within: Any = deepspeed.initialize(
            model=Within(model), optimizer=self.adam, config=engine_config(settings)
        )[0]
        self._start_from(moments)

    def step(self, batches: list[Batch]) -> dict[str, float]:
        """One optimiser step on this process's batches; the same number of them in every process."""
        stats = Stats()
        for index, batch in enumerate(batches):
            self.within.set_gradient_accumulation_boundary(index + 1 == len(batches))
            given = batch.to(self.within.device)
            loss, part = self.within(
                lambda model, given=given: batch_loss(model, given, self.settings, self.temperature)
            )
            self.within.backward(loss * self.ranks)  # DeepSpeed takes the mean over processes; this is a sum
            stats += part
        stats = self._of_all(stats)
        if self.settings.zero_stage == 0:
            norm = float(nn.utils.clip_grad_norm_(self.trained.values(), self.settings.max_grad_norm))
        self.within.step()
        if self.settings.zero_stage > 0:
            norm = float(self.within.get_global_grad_norm())
        check_finite(stats.loss, norm)
        return stats.metrics() | stats.mismatch() | {"grad_norm": norm}

    def _of_all(self, stats: Stats) -> Stats:
        """The counts of all processes, in each of them."""
        table = torch.zeros(self.ranks, len(astuple(stats)), dtype=torch.float64, device=self.within.device)
        table[dist.get_rank()] = torch.tensor(astuple(stats))
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
        weights, moments = {}, {}
        rank, taken = dist.get_rank(), next(iter(self.adam.state.values()))["step"]
        for index, name in enumerate(self.trained):
            weight = self.whole(name)
            state = {"step": torch.tensor(float(taken))} | {key: self.whole(name, key) for key in MOMENTS}
            if rank == 0:
                weights[name] = weight
            if index % self.ranks == rank:
                moments[name] = state
        if rank == 0:
            save_policy(self.model, weights, self.settings, policy, target, fresh)
        dist.barrier()
        save_moments(moments, target, rank, self.ranks)
        dist.barrier()

    def _start_from(self, moments: Moments) -> None:
        """Sets the moments; a step without terms, at the learning rate 0, has DeepSpeed allocate them first."""
        self.step([no_terms()])
        for name, parameter in self.trained.items():
            for key in MOMENTS:
                value = moments[name][key] if name in moments else torch.zeros(_shape(parameter))
                if self.settings.zero_stage == 0:
                    self.adam.state[parameter][key].copy_(value)
                else:
                    safe_set_full_optimizer_state(parameter, value.to(self.within.device), key)
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


def share(
    batches: Callable[[DeepSpeedParams], list[Batch]], settings: DeepSpeedParams, rank: int, ranks: int
) -> list[Batch]:
    """The batches of one process: smaller ones if there are too few for all, empty ones where others have one more."""
    made = batches(settings)
    if len(made) < ranks:
        tokens = sum(batch.input_ids.numel() for batch in made)
        made = batches(settings.model_copy(update={"micro_batch_tokens": 1 + tokens // ranks}))
    mine = made[rank::ranks]
    return mine + [no_terms()] * (math.ceil(len(made) / ranks) - len(mine))


def run(folder: Path) -> None:
    """Takes the step that the folder's job asks for; the first process writes the metrics last."""
    job = read_json(folder / "job.json")
    load_plugins(job["plugins"])
    settings = DeepSpeedParams.model_validate(job["settings"])
    policy, target, seed, fresh = Path(job["policy"]), Path(job["target"]), job["seed"], job["fresh"]
    torch.set_num_threads(job["threads"])
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parted = HfDeepSpeedConfig(engine_config(settings)) if settings.zero_stage == 3 else None  # while it is loaded, too
    model = load_trainable(policy, settings, seed, fresh)
    learner = Learner(model, settings, job["temperature"], {} if fresh else load_moments(policy))
    del parted
    forest = Forest.from_table(read_parquet(folder / "forest.parquet", NODE_SCHEMA))
    terms, rng = terms_of(forest, settings.advantage), np.random.default_rng(seed)
    begin = time.perf_counter()
    temperature = job["temperature"]
    settings, packing = learner.within(lambda model: choose_packing(model, forest, terms, settings, temperature))
    proximal, mismatch = learner.within(lambda model: measure_mismatch(model, forest, terms, settings, temperature))
    steps: list[dict[str, float]] = []
    for _ in range(settings.epochs):
        for part in minibatches(forest, terms, settings.minibatches, rng):
            make = partial(micro_batches, forest, part, proximal=proximal)
            steps.append(learner.step(share(make, settings, rank, ranks)))
    seconds = time.perf_counter() - begin
    learner.save(policy, target, fresh)
    print(f"process {rank}: {seconds:.3f} s for {len(steps)} steps, {peak_memory() / 2**20:.0f} MiB at the most")
    if rank == 0:
        write_json(folder / "metrics.json", mean_of_steps(steps) | first_mismatch(steps) | mismatch | packing)


def peak_memory() -> int:
    """The most memory that this process took so far, in bytes: of its GPU, or of the host where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folders: list[Path]) -> None:
    """Joins the other processes, and runs the jobs of some folders; an error that can be told is written there."""
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


def _shape(parameter: Tensor) -> torch.Size:
    """The whole parameter's shape; ZeRO-3 leaves an empty one in its place."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
