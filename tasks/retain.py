"""Retain: delete what a continued run does not need; never before what replaces it has been read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.run import Run
from tasks.stage import read_stages
from tasks.store import store_of

SUBSUMED = (  # their content is in forest.parquet and metrics.json once the iteration is finished
    *(f"{stage}.parquet" for stage in ("roots", "generated", "factual", "refilled", "expanded", "verified")),
    "evaluation.json",
    "shards",
)
PAGE = "trees.html"  # of the newest iteration; `trace view` makes those of the others
TREES = ("scored.parquet", "forest.parquet")


@task(name="retain", task_run_name="retain", cache_policy=NO_CACHE, persist_result=False)
def retain(run_path: Path, iteration: int) -> Path:
    """Deletes, after an iteration, what neither continuing the run nor looking at it needs.

    Kept are `run.keep_policies` policies, the best one, and the predictors fitted beside them; of each iteration its
    forest and the scores of its pool. Where `run.keep_forests` bounds the forests, those stay that the next refit after
    any kept policy reads, the best one included.
    """
    run = Run(run_path)
    settings, best = run.params.run, _best(run, iteration)
    if best[0] is not None and best != run.manifest.get("best"):
        run.note(best=best)
    # Version v is made in iteration v - 1 and samples in iteration v. The newest has not been read yet; the one before
    # has, so it stays even with keep_policies=1.
    newest = iteration + 1
    versions = {best[0], *range(max(0, newest - max(2, settings.keep_policies)) + 1, newest + 1)} - {None, 0}
    _drop_others(run, {version - 1 for version in versions}, ("policy", "predictor"), newest)
    if "record" in read_stages(run.iteration(iteration)):
        for name in SUBSUMED:
            _drop(run, run.iteration(iteration) / name)
    if iteration:
        _drop(run, run.iteration(iteration - 1) / PAGE)
    if settings.keep_forests is not None:
        replay = max(1, run.params.predictor.replay)  # as `finished_iterations` asks for
        forests = {number for version in versions for number in range(version - replay, version)}
        _drop_others(run, forests | set(range(newest - settings.keep_forests, newest)), TREES, newest)
    return run.path


def _best(run: Run, iteration: int) -> list[Any]:
    """The version with the highest accuracy on held-out prompts, and that accuracy; of equal ones the latest.

    Line v of the metrics holds the accuracy of version v. The manifest's note has the best of the lines before, so only
    the newest line is read, unless the run went back and the note is of a version that is yet to be made.
    """
    noted = run.manifest.get("best") or [None, -1.0]
    first, best = (iteration, noted) if noted[0] is not None and noted[0] < iteration else (1, [None, -1.0])
    for line in run.metrics(first)[: iteration + 1 - first]:
        if line["eval/accuracy"] is not None and line["eval/accuracy"] >= best[1]:
            best = [line["iteration"], line["eval/accuracy"]]
    return best


def _drop_others(run: Run, kept: set[int], names: tuple[str, ...], iterations: int) -> None:
    """Drops outputs of all iterations but those in `kept`, here and in the run's store; the oldest first."""
    store = store_of(run.path)
    for number in sorted(set(range(iterations)) - kept):
        for path in (run.iteration(number) / name for name in names):
            if path.exists() or (store is not None and store.has(str(path))):
                _drop(run, path)


def _drop(run: Run, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if store := store_of(run.path):
        store.drop(path)
