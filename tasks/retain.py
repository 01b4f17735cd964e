"""Retain: drop what a continued run will not need; never before the new is safe."""

from __future__ import annotations

import shutil
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.run import Run
from tasks.stage import read_stages
from tasks.store import store_of

SUBSUMED = ("generated.parquet", "refilled.parquet", "verified.parquet")  # their rows are in factual and forest.parquet


@task(name="retain", task_run_name="retain", cache_policy=NO_CACHE, persist_result=False)
def retain(run_path: Path, iteration: int) -> Path:
    """Keeps the newest policies and the best one, and drops intermediate forests and shards of finished iterations.

    The policy of version v lies in iteration v - 1, and `eval/accuracy` of line v is its accuracy.
    """
    run = Run(run_path)
    accuracy = {
        line["iteration"]: line["eval/accuracy"]
        for line in run.metrics()
        if line["iteration"] > 0 and line["eval/accuracy"] is not None
    }
    best = max(accuracy, key=lambda version: (accuracy[version], version), default=None)
    newest = range(iteration + 2 - run.params.run.keep_policies, iteration + 2)
    for version in range(1, iteration + 2):
        folder = run.iteration(version - 1) / "policy"
        if version != best and version not in newest:
            _drop(run, folder)
    for shards in run.path.glob("iterations/*/shards"):
        if "record" in read_stages(shards.parent):
            _drop(run, shards)
    for name in SUBSUMED:
        if "record" in read_stages(run.iteration(iteration)):
            _drop(run, run.iteration(iteration) / name)
    return run.path


def _drop(run: Run, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if store := store_of(run.path):
        store.drop(path)
