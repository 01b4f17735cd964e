"""Expand, stage 2: continuations from visited prefixes where they are likely to flip the outcome."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from components.allocation.anchors import Anchors
from components.allocation.arm import Arm, plan_by_tree
from components.allocation.budget import Budget
from components.build import make_arm, make_predictor, make_sampler
from components.policy.rollout import Sampler, Start
from components.predictor.base import believe, prefixes_of
from components.seeds import derive_seed
from components.tree.anchors import SUCCESS, visited_anchors
from components.tree.forest import Forest, tree_by_tree
from components.tree.schema import Node
from tasks.inputs import prompts, read_forest, write_forest
from tasks.stage import WHOLE, Context, Shard, stage
from tasks.verify import score_new

_predicting = threading.Lock()  # shards predict in turn: one copy of the predictor at a time


@stage("expand prefixes", output="expanded.parquet")
def expand_prefixes(
    context: Context, policy: Path, predictor: Path | None, factual: Path, shard: Shard = WHOLE
) -> dict[str, float]:
    """Writes the forest with beliefs at its prefixes, the counts K granted there (Eq. 16), and the continuations.

    The continuations of the last round, which is the only one by default, are not verified yet.
    """
    params, arm = context.params, make_arm(context.params)
    forest = read_forest(factual)
    nodes = list(forest.nodes)
    anchors = _predict(context, forest, policy, predictor)
    sampler = make_sampler(params, policy, context.iteration)
    plan = _Planner(context, arm, nodes)
    granted_A = np.zeros(len(anchors), dtype=np.int64)
    new: list[Node] = []
    for budget in params.allocation.budget.parts(arm.rounds):
        if new:
            score_new(params, new)
            anchors = _with_outcomes(anchors, new)
        counts_A = plan(anchors, budget)
        new = _continue(context, sampler, nodes, anchors.node_A, granted_A, counts_A)
        nodes += new
        granted_A += counts_A
    for row, count in zip(anchors.node_A.tolist(), granted_A.tolist(), strict=True):
        if count and nodes[row].parent_id >= 0:  # a root keeps m_i: rollouts beyond it are those of stage 2
            nodes[row].allocated, nodes[row].rule = count, arm.name
    write_forest(context.output, tree_by_tree(nodes))
    is_prefix_A = anchors.is_prefix_A
    return {
        "anchors": float(len(anchors)),
        "continuations": float(granted_A[is_prefix_A].sum()),
        "extra_roots": float(granted_A[~is_prefix_A].sum()),
        "tokens": float(sum(sum(n.is_action) for n in nodes[len(forest) :])),
    } | sampler.usage()


def _predict(context: Context, forest: Forest, policy: Path, predictor: Path | None) -> Anchors:
    """The visited anchors with what the predictor believes of them, which the nodes keep as well."""
    anchors = visited_anchors(forest)
    prefixes = prefixes_of(forest, anchors.node_A.tolist(), prompts(context.params, "train"))
    with _predicting:
        belief = believe(make_predictor(context.params, policy, predictor), prefixes)
    for row, mean, concentration in zip(
        anchors.node_A.tolist(), belief.mean_A.tolist(), belief.concentration_A.tolist(), strict=True
    ):
        if forest.nodes[row].v_hat is None:  # a root keeps what stage 1 believed
            forest.nodes[row].v_hat, forest.nodes[row].concentration = mean, concentration
    return anchors.with_belief(belief)


class _Planner:
    """Asks an arm for continuations; each tree of a local arm draws from a generator of its own."""

    def __init__(self, context: Context, arm: Arm, nodes: list[Node]) -> None:
        roots = [node for node in nodes if node.parent_id < 0]
        self.arm, self.factual_S = arm, np.array([root.allocated for root in roots], dtype=np.int64)
        self.rng, *self.rng_S = (
            np.random.default_rng(derive_seed(context.params.run.seed, context.iteration, "prefixes", prompt))
            for prompt in ("", *(root.prompt_id for root in roots))
        )

    def __call__(self, anchors: Anchors, budget: Budget) -> np.ndarray:
        """Further rollouts for each anchor; int64 (A,)."""
        if self.arm.is_local:
            return plan_by_tree(self.arm, anchors, self.factual_S, budget, self.rng_S)
        return self.arm.plan_continuations(anchors, self.factual_S, budget, self.rng)


def _continue(
    context: Context,
    sampler: Sampler,
    nodes: list[Node],
    node_A: np.ndarray,
    before_A: np.ndarray,
    counts_A: np.ndarray,
) -> list[Node]:
    """Samples `counts_A` further rollouts from anchors that had `before_A` of them."""
    train = prompts(context.params, "train")
    forest = Forest(nodes)
    starts: list[Start] = []
    for row, before, count in zip(node_A.tolist(), before_A.tolist(), counts_A.tolist(), strict=True):
        if not count:
            continue
        node, prompt, rank = nodes[row], train[nodes[row].prompt_id], int(forest.rank_N[row])
        ids = forest.prefix_ids(row)
        state = sampler.world(prompt, [nodes[i].action or "" for i in forest.path(row)[1:]])
        first = before + (node.allocated if node.parent_id < 0 else 0)  # those of stage 1 come before
        for sibling in range(first, first + count):
            seed = derive_seed(context.params.run.seed, context.iteration, prompt.prompt_id, rank, sibling)
            starts.append(Start(prompt, node.tree_id, row, sibling, node.turn, ids, state, seed))
    return sampler.sample(starts, len(nodes), context.counter(len(starts)))


def _with_outcomes(anchors: Anchors, new: list[Node]) -> Anchors:
    """The anchors, with the outcomes of rollouts that were sampled from them since."""
    position = {row: index for index, row in enumerate(anchors.node_A.tolist())}
    successes_A, failures_A = anchors.successes_A.copy(), anchors.failures_A.copy()
    for leaf in new:
        if leaf.is_terminal and leaf.reward is not None:
            (successes_A if leaf.reward > SUCCESS else failures_A)[position[leaf.anchor_id]] += 1
    return replace(anchors, successes_A=successes_A, failures_A=failures_A)
