"""Prepare: the data set and the policy that the run starts from; both are made once and found again by content."""

from __future__ import annotations

from pathlib import Path

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE

from components.datasets import prepare
from components.errors import UserError
from tasks.run import Run
from tasks.stage import listeners


@task(name="prepare data", task_run_name="prepare data", cache_policy=NO_CACHE, persist_result=False)
def prepare_data(run_path: Path) -> Path:
    """Folder of the data set."""
    params = Run(run_path).params
    return prepare(params.environment, Path(params.run.data_dir)).absolute()


@task(name="warm up policy", task_run_name="warm up policy", cache_policy=NO_CACHE, persist_result=False)
def warm_up_policy(run_path: Path) -> Path:
    """Folder of the checkpoint that the run starts from: the user's own, or the tiny policy."""
    params = Run(run_path).params
    if params.policy.path is not None:
        path = Path(params.policy.path)
        if not (path / "config.json").is_file():
            raise UserError(
                f"policy.path={params.policy.path!r}: no config.json there; give a folder with a Hugging Face checkpoint"
            )
        return path.absolute()
    from components.policy.warmup import warm_up

    torch.set_num_threads(params.run.threads)

    def progress(done: int, total: int) -> None:
        for listener in listeners:
            listener.stage("warm_up_policy", done, total)

    return warm_up(params.policy, Path(params.run.data_dir) / "warmup", progress).absolute()
