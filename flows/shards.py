"""Shards side by side: stage 2 of a shard starts as soon as its factual rollouts are verified."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture

from tasks.run import Run
from tasks.shards import join_shards, shards_of
from tasks.stage import Shard, stopping, titled

WAKE = 0.5  # seconds between looks at signals, which may reach another thread than the one that waits
PATIENCE = 600.0  # seconds after which the log says what is being waited for

logger = logging.getLogger("trace")


def side_by_side(grow: Callable[..., Path], run: Path, number: int, **inputs: Any) -> Path:
    """The iteration's verified forest: `grow` for each shard, each in a thread where there are several.

    A shard that fails ends the run, but only after the others have finished and stored what was paid for.

    Args:
        grow: Takes the run's folder, the iteration, `inputs` and a shard; returns the shard's verified forest.
        run: The run's folder.
        number: The iteration.
        inputs: What all shards get.
    """
    shards = shards_of(Run(run), number)
    if len(shards) == 1:
        return grow(run, number, **inputs, shard=shards[0])
    futures = {shard: grow_shard.submit(grow, run, number, inputs, shard) for shard in shards}
    try:
        _await(futures)
        return join_shards(run, number, verified=[future.result() for future in futures.values()])
    except BaseException:
        stopping.set()
        raise


def _shard_name() -> str:
    return titled("shard", runtime.task_run.parameters["shard"])


@task(name="shard", task_run_name=_shard_name, cache_policy=NO_CACHE, persist_result=False)
def grow_shard(grow: Callable[..., Path], run: Path, number: int, inputs: dict[str, Any], shard: Shard) -> Path:
    """A shard's verified forest."""
    return grow(run, number, **inputs, shard=shard)


def _await(futures: dict[Shard, PrefectFuture[Path]]) -> None:
    """Waits for all, and names from time to time those that are still awaited."""
    ended: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard, future in futures.items():
        future.add_done_callback(lambda _, shard=shard: ended.put(shard))  # type: ignore[misc]
    pending, reported = set(futures), time.monotonic()
    while pending:
        try:
            pending.remove(ended.get(timeout=WAKE))
        except queue.Empty:
            if time.monotonic() - reported >= PATIENCE:
                reported = time.monotonic()
                logger.warning("still waiting for %s", ", ".join(titled("shard", shard) for shard in sorted(pending)))
