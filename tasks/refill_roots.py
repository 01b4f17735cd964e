"""Refill, stage 1 again: the further bare rollouts that some arms ask for once outcomes are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from components.allocation import ARMS, Seen
from components.policy import make_sampler
from components.policy.rollout import derive_seed
from components.storage import atomic_path, read_parquet
from components.tree.anchors import SUCCESS
from components.tree.forest import Forest, tree_by_tree
from tasks.allocate_roots import ROOTS_SCHEMA, belief_of
from tasks.generate import grow_roots
from tasks.inputs import read_forest, write_forest
from tasks.stage import Context, stage
from tasks.verify import score_new


@stage("refill roots", output="refilled.parquet")
def refill_roots(context: Context, policy: Path, roots: Path, factual: Path) -> dict[str, float]:
    """Writes the forest with the rounds of sampling and verification that the arm asks for, until it asks for none.

    Arms with a single round write the forest as it was.
    """
    params = context.params
    arm, shape = ARMS[params.allocation.arm], params.allocation.shape
    if arm.is_local:  # it asks for no refill
        with atomic_path(context.output) as temporary:
            shutil.copyfile(factual, temporary)
        return {"rounds": 0.0, "rollouts": 0.0, "tokens": 0.0}
    table = read_parquet(roots, ROOTS_SCHEMA)
    pool, ids = belief_of(table), table["prompt_id"].to_pylist()
    nodes = read_forest(factual).nodes
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "refill"))
    sample = None
    rounds = rollouts = tokens = 0
    while (more := arm.refill(pool, _seen(ids, Forest(nodes)), shape, rng)).any():
        sample = sample or make_sampler(params, policy, context.iteration)
        rows = np.flatnonzero(more)
        plan = list(zip(table.take(rows).to_pylist(), more[rows].tolist(), strict=True))
        new, count = grow_roots(context, sample, nodes, plan)
        score_new(params, nodes)
        rounds, rollouts, tokens = rounds + 1, rollouts + count, tokens + sum(sum(n.is_action) for n in new)
    write_forest(context.output, tree_by_tree(nodes))
    return {"rounds": float(rounds), "rollouts": float(rollouts), "tokens": float(tokens)} | (
        sample.usage() if sample else {}
    )


def _seen(ids: list[str], forest: Forest) -> Seen:
    """What each prompt of the pool has shown so far."""
    position = {prompt_id: index for index, prompt_id in enumerate(ids)}
    sampled, successes, failures = (np.zeros(len(ids), dtype=np.int64) for _ in range(3))
    for leaf in forest.leaves_L.tolist():
        prompt, reward = position[forest.nodes[leaf].prompt_id], forest.reward_N[leaf]
        sampled[prompt] += 1
        successes[prompt] += reward > SUCCESS
        failures[prompt] += reward <= SUCCESS
    return Seen(sampled, successes, failures)
