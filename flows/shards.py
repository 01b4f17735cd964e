"""Both stages of rollouts, shard by shard: stage 2 of a shard starts as soon as its factual rollouts are verified."""

from __future__ import annotations

import logging
import queue
import time
from pathlib import Path

from prefect import runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture

from components.allocation.arms import ARMS
from tasks.expand import expand_prefixes
from tasks.run import Run
from tasks.sample import generate, refill_roots
from tasks.shards import join_shards, shards_of
from tasks.stage import Shard, stopping, titled
from tasks.verify import verify_counterfactual, verify_factual

WAKE = 0.5  # seconds between looks at signals, which may reach another thread than the one that waits
PATIENCE = 600.0  # seconds after which the log says what is being waited for

logger = logging.getLogger("trace")


def grow(run: Path, number: int, policy: Path, predictor: Path | None, roots: Path) -> Path:
    """The iteration's verified forest. The shards work side by side, each in a thread.

    A shard that fails ends the run, but only after the others have finished and stored what was paid for.
    """
    shards = shards_of(Run(run), number)
    if len(shards) == 1:
        arm = ARMS[Run(run).params.allocation.arm]
        generated = generate(run, number, policy=policy, roots=roots)
        factual = verify_factual(run, number, forest=generated)
        if arm.refills:
            factual = refill_roots(run, number, policy=policy, roots=roots, factual=factual)
        if not arm.branches:
            return factual
        expanded = expand_prefixes(run, number, policy=policy, predictor=predictor, factual=factual)
        return verify_counterfactual(run, number, forest=expanded)
    futures = {shard: grow_shard.submit(run, number, policy, predictor, roots, shard) for shard in shards}
    try:
        _await(futures)
        return join_shards(run, number, verified=[future.result() for future in futures.values()])
    except BaseException:
        stopping.set()
        raise


def _shard_name() -> str:
    return titled("shard", runtime.task_run.parameters["shard"])


@task(name="shard", task_run_name=_shard_name, cache_policy=NO_CACHE, persist_result=False)
def grow_shard(run: Path, number: int, policy: Path, predictor: Path | None, roots: Path, shard: Shard) -> Path:
    """A shard's verified forest. There is no refill: the arms that ask for one have a single shard."""
    generated = generate(run, number, policy=policy, roots=roots, shard=shard)
    factual = verify_factual(run, number, forest=generated, shard=shard)
    if not ARMS[Run(run).params.allocation.arm].branches:
        return factual
    expanded = expand_prefixes(run, number, policy=policy, predictor=predictor, factual=factual, shard=shard)
    return verify_counterfactual(run, number, forest=expanded, shard=shard)


def _await(futures: dict[Shard, PrefectFuture[Path]]) -> None:
    """Waits for all, and names from time to time those that are still awaited."""
    ended: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard, future in futures.items():
        future.add_done_callback(lambda _, shard=shard: ended.put(shard))  # type: ignore[misc]
    pending, told = set(futures), time.monotonic()
    while pending:
        try:
            pending.remove(ended.get(timeout=WAKE))
        except queue.Empty:
            if time.monotonic() - told >= PATIENCE:
                told = time.monotonic()
                logger.warning("still waiting for %s", ", ".join(titled("shard", shard) for shard in sorted(pending)))
