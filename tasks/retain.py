"""Retain: drop what a continued run will not need; never before the new is safe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.run import Run
from tasks.stage import read_stages

SUBSUMED = ("generated.parquet", "refilled.parquet", "verified.parquet")  # their rows are in factual and forest.parquet
TREES = ("report.html", "scored.parquet", "roots.parquet", "factual.parquet", "expanded.parquet", "forest.parquet")


@task(name="retain", task_run_name="retain", cache_policy=NO_CACHE, persist_result=False)
def retain(run_path: Path, iteration: int) -> Path:
    """Keeps the newest policies and the best one, and drops the intermediate forests of the finished iteration.

    The policy of version v and the predictor that was fitted beside it lie in iteration v - 1. Where
    `run.keep_forests` bounds the forests, those that the next refits need stay, for every kept policy.
    """
    run = Run(run_path)
    settings = run.params.run
    kept = {_best(run, iteration), *range(iteration + 2 - settings.keep_policies, iteration + 2)}
    for version in range(1, iteration + 2):
        for name in ("policy", "predictor"):
            folder = f"{run.iteration(version - 1)}/{name}"
            if version not in kept and os.path.exists(folder):
                shutil.rmtree(folder)
    for name in SUBSUMED:
        if "record" in read_stages(run.iteration(iteration)):
            (run.iteration(iteration) / name).unlink(missing_ok=True)
    if settings.keep_forests is not None:
        newest = max(settings.keep_forests, run.params.predictor.replay + settings.keep_policies)
        for number in reversed(range(iteration + 1 - newest)):
            if not (run.iteration(number) / TREES[-1]).exists():
                break  # nor do earlier ones have theirs
            for name in TREES:
                (run.iteration(number) / name).unlink(missing_ok=True)
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
