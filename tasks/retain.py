"""Retain: drop what a continued run will not need; never before the new is safe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

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
PAGES = ("report.html", "trees.html")  # of the newest iteration; `trace view` shows the trees of the others
TREES = ("scored.parquet", "forest.parquet")


@task(name="retain", task_run_name="retain", cache_policy=NO_CACHE, persist_result=False)
def retain(run_path: Path, iteration: int) -> Path:
    """Keeps the newest policies and the best one, and of a finished iteration its forest and the scores of its pool.

    The policy of version v and the predictor that was fitted beside it lie in iteration v - 1. Where
    `run.keep_forests` bounds the forests, those that the next refits need stay, for every kept policy.
    """
    run = Run(run_path)
    settings, store = run.params.run, store_of(run.path)
    kept = {_best(run, iteration), *range(iteration + 2 - settings.keep_policies, iteration + 2)}
    for version in range(1, iteration + 2):
        for name in ("policy", "predictor"):
            folder = f"{run.iteration(version - 1)}/{name}"
            # As text, for there may be thousands; another machine may have left one in the store alone.
            if version not in kept and (os.path.exists(folder) or (store is not None and store.has(folder))):
                _drop(run, Path(folder))
    if "record" in read_stages(run.iteration(iteration)):
        for name in SUBSUMED:
            _drop(run, run.iteration(iteration) / name)
    for name in PAGES if iteration else ():
        _drop(run, run.iteration(iteration - 1) / name)
    if settings.keep_forests is not None:
        newest = max(settings.keep_forests, run.params.predictor.replay + settings.keep_policies)
        for number in reversed(range(iteration + 1 - newest)):
            if not (run.iteration(number) / TREES[-1]).exists():
                break  # nor do earlier ones have theirs
            for name in TREES:
                _drop(run, run.iteration(number) / name)
    return run.path


def _best(run: Run, iteration: int) -> int | None:
    """The version with the highest `eval/accuracy`, that of line v being the accuracy of version v; noted in the run.

    Only the newest line is read, unless the note is from beyond it: from before the run went back.
    """
    version, accuracy = run.manifest.get("best") or (None, -1.0)
    start = iteration if version is not None and version < iteration else 1
    found = (version, accuracy) if start == iteration else (None, -1.0)
    for line in run.metrics(start)[: iteration + 1 - start]:
        if line["eval/accuracy"] is not None and line["eval/accuracy"] >= found[1]:
            found = (line["iteration"], line["eval/accuracy"])
    if found != (version, accuracy):
        run.note(best=found)
    return found[0]


def _drop(run: Run, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if store := store_of(run.path):
        store.drop(path)
