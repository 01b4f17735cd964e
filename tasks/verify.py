"""Verify: a terminal reward, or a status that says why there is none, for every leaf that has neither yet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from components.config import Params
from components.storage import read_parquet, write_parquet
from components.tree.schema import NODE_SCHEMA, Node, Status, StopReason, table_to_nodes, with_columns
from tasks.inputs import prompts
from tasks.judge import judge
from tasks.stage import WHOLE, Context, Shard, stage

logger = logging.getLogger("trace")


def _verify(context: Context, forest: Path, shard: Shard = WHOLE) -> dict[str, float]:
    """Writes the forest with the rewards of its new leaves; the other nodes stay a table."""
    table = read_parquet(forest, NODE_SCHEMA)
    is_leaf_N = table["stop_reason"].is_valid().to_numpy()
    leaves = table_to_nodes(table.filter(is_leaf_N))
    new = score_new(context.params, leaves)
    reward, status = table["reward"].to_pylist(), table["status"].to_pylist()
    for row, leaf in zip(np.flatnonzero(is_leaf_N).tolist(), leaves, strict=True):
        reward[row], status[row] = leaf.reward, leaf.status
    write_parquet(context.output, with_columns(table, {"reward": reward, "status": status}))
    return {"verified": float(len(new)), "unscored": float(sum(n.reward is None for n in new))}


def score_new(params: Params, nodes: list[Node]) -> list[Node]:
    """Gives a reward, or a status that says why there is none, to the leaves that have neither; returns these."""
    train = prompts(params, "train")
    new = [n for n in nodes if n.is_terminal and n.reward is None and n.status == Status.OK]
    failures: list[str] = []
    cases = [(train[n.prompt_id], n.observation if n.stop_reason == StopReason.ANSWERED else None) for n in new]
    for node, outcome in zip(new, judge(params, cases), strict=True):
        node.reward, node.status = outcome.reward, outcome.status
        if outcome.detail is not None:
            failures.append(outcome.detail)
    if failures:
        logger.warning("%d of %d rollouts could not be verified; the first: %s", len(failures), len(new), failures[0])
    return new


verify_factual: Callable[..., Path] = stage("verify factual", output="factual.parquet")(_verify)
verify_counterfactual: Callable[..., Path] = stage("verify counterfactual", output="verified.parquet")(_verify)
