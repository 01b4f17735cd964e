"""Retain: drop what a continued run will not need; never before the new is safe."""

from __future__ import annotations

import shutil
from itertools import takewhile
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.run import Run
from tasks.stage import read_stages
from tasks.store import store_of

SUBSUMED = (  # in forest.parquet and metrics.json, once the iteration is finished
    *(f"{stage}.parquet" for stage in ("roots", "generated", "factual", "refilled", "expanded", "verified")),
    "evaluation.json",
    "shards",
)
PAGE = "trees.html"  # of the newest iteration; `trace view` makes those of the others
TREES = ("scored.parquet", "forest.parquet")


@task(name="retain", task_run_name="retain", cache_policy=NO_CACHE, persist_result=False)
def retain(run_path: Path, iteration: int) -> Path:
    """Keeps the newest policies and the best one, and of a finished iteration its forest and the scores of its pool.

    The policy of version v and the predictor that was fitted beside it lie in iteration v - 1. Where
    `run.keep_forests` bounds the forests, those that the next refits need stay, for every kept policy.
    """
    run = Run(run_path)
    settings = run.params.run
    noted, best = run.manifest.get("best"), _best(run, iteration)
    older = (version for version in range(iteration + 1 - settings.keep_policies, 0, -1) if version != best[0])
    stale = list(takewhile(lambda version: _made(run, version), older))  # where one is gone, earlier ones are, too
    if noted and noted[0] != best[0] and noted[0] < iteration + 2 - settings.keep_policies:
        stale.append(noted[0])  # the best until now, beyond the gap
    for version in reversed(stale):  # the oldest first: a kill on the way leaves no gap above what is still to go
        for folder in _made(run, version):
            _drop(run, folder)
    if best[0] is not None and noted != best:
        run.note(best=best)
    if "record" in read_stages(run.iteration(iteration)):
        for name in SUBSUMED:
            _drop(run, run.iteration(iteration) / name)
    if iteration:
        _drop(run, run.iteration(iteration - 1) / PAGE)
    if settings.keep_forests is not None:
        newest = max(settings.keep_forests, run.params.predictor.replay + settings.keep_policies)
        for number in reversed(range(iteration + 1 - newest)):
            if not (run.iteration(number) / TREES[-1]).exists():
                break  # nor do earlier ones have theirs
            for name in TREES:
                _drop(run, run.iteration(number) / name)
    return run.path


def _best(run: Run, iteration: int) -> list[Any]:
    """The version with the highest `eval/accuracy`, that of line v being the accuracy of version v; and the accuracy.

    Only the newest line is read, unless the run's note is from beyond it: from before the run went back.
    """
    version, accuracy = run.manifest.get("best") or (None, -1.0)
    start = iteration if version is not None and version < iteration else 1
    best = [version, accuracy] if start == iteration else [None, -1.0]
    for line in run.metrics(start)[: iteration + 1 - start]:
        if line["eval/accuracy"] is not None and line["eval/accuracy"] >= best[1]:
            best = [line["iteration"], line["eval/accuracy"]]
    return best


def _made(run: Run, version: int) -> list[Path]:
    """The policy of a version and the predictor fitted beside it, where they are; maybe in the run's store alone."""
    store = store_of(run.path)
    folders = [run.iteration(version - 1) / name for name in ("policy", "predictor")]
    return [folder for folder in folders if folder.exists() or (store is not None and store.has(str(folder)))]


def _drop(run: Run, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if store := store_of(run.path):
        store.drop(path)
