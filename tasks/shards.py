"""Shards: parts of an iteration's active prompts that are sampled, verified and expanded side by side, then joined.

No prompt waits for the rollouts of another shard. What is sampled for a prompt does not depend on the shards: a seed
and a plan depend on one tree only, and the joined forest has the order that a single shard would have written.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from components.allocation.arms import ARMS
from components.storage import write_sealed
from components.tree.forest import join
from tasks.inputs import read_forest, write_forest
from tasks.run import Run
from tasks.stage import WHOLE, Context, Shard, read_stages, stage

logger = logging.getLogger("trace")


def shards_of(run: Run, number: int) -> list[Shard]:
    """The shards of an iteration whose roots are allocated: `engine.shards` of them, or fewer where one would be empty.

    An arm whose refill, or whose second stage, looks at the whole pool has a single shard.
    """
    params, arm = run.params, ARMS[run.params.allocation.arm]
    if params.engine.shards > 1 and not arm.is_local:
        logger.warning(
            "allocation.arm=%s plans over the whole pool, so engine.shards=%d is one shard",
            params.allocation.arm,
            params.engine.shards,
        )
        return [WHOLE]
    active = int(read_stages(run.iteration(number))["allocate_roots"]["metrics"]["active_prompts"])
    count = max(1, min(params.engine.shards, active))
    return [(index, count) for index in range(count)]


@stage("join shards", output="verified.parquet")
def join_shards(context: Context, verified: list[Path]) -> dict[str, float]:
    """Writes the forest that a single shard would have written, and the sums of the shards' manifest entries.

    `overlapped_seconds` is what working side by side saved: the sum over the stages of the time in which any shard was
    in that stage, less the time in which any shard was in any stage.
    """
    folders = [path.parent for path in verified]
    write_forest(context.output, join([read_forest(path) for path in verified]))
    manifests = [read_stages(folder) for folder in folders]
    entries = {name: [manifest[name] for manifest in manifests] for name in manifests[0]}
    total = {name: _sum(several) for name, several in entries.items()}
    write_sealed(context.folder / "manifest.json", read_stages(context.folder) | total)
    busy = _covered([entry for several in entries.values() for entry in several])
    overlapped = sum(entry["seconds"] for entry in total.values()) - busy
    return {"shards": float(len(folders)), "overlapped_seconds": overlapped}


def _sum(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """One manifest entry for a stage that ran in several shards. It has no inputs, so it never counts as done.

    Counts are added; shares (metrics whose names end so) are averaged, weighted by the tokens sampled.
    """
    metrics: list[dict[str, float]] = [entry["metrics"] for entry in entries]
    weights = [each.get("tokens", 1.0) for each in metrics]
    total = {name: sum(each[name] for each in metrics) for name in metrics[0]}
    for name in (name for name in total if name.endswith("share")):
        weighted = sum(each[name] * weight for each, weight in zip(metrics, weights, strict=True))
        total[name] = weighted / (sum(weights) or 1.0)
    began = min(entry["began"] for entry in entries)
    return {"inputs": {}, "outputs": {}, "began": began, "seconds": _covered(entries), "metrics": total}


def _covered(entries: list[dict[str, Any]]) -> float:
    """Seconds during which at least one of the entries' stages ran: the length of the union of their intervals."""
    seconds, end = 0.0, float("-inf")
    for began, ended in sorted((entry["began"], entry["began"] + entry["seconds"]) for entry in entries):
        seconds += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return seconds
