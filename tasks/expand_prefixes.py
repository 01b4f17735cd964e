"""Expand, stage 2: continuations from visited prefixes where they are likely to flip the outcome."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from components.allocation import ARMS, Anchors, plan_by_tree
from components.policy import make_sampler
from components.policy.rollout import Sampler, Start, derive_seed
from components.predictor import believe, make_predictor, prefixes_of
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
    params = context.params
    arm, shape, rounds = ARMS[params.allocation.arm], params.allocation.shape, params.allocation.rounds
    forest = read_forest(factual)
    nodes = list(forest.nodes)
    anchors = visited_anchors(forest)
    prefixes = prefixes_of(forest, anchors.node_A.tolist(), prompts(params, "train"))
    with _predicting:
        belief = believe(make_predictor(params, policy, predictor), prefixes)
    anchors = anchors.with_belief(belief)
    for row, *law in zip(anchors.node_A.tolist(), belief.mean_A.tolist(), belief.concentration_A.tolist(), strict=True):
        if nodes[row].v_hat is None:  # a root keeps what stage 1 believed
            nodes[row].v_hat, nodes[row].concentration = law
    bare = np.array([n.allocated for n in nodes if n.parent_id < 0], dtype=np.int64)
    rng, *rng_S = (
        np.random.default_rng(derive_seed(params.run.seed, context.iteration, "prefixes", prompt))
        for prompt in ("", *(n.prompt_id for n in nodes if n.parent_id < 0))
    )

    sample = make_sampler(params, policy, context.iteration)
    granted_A = np.zeros(len(anchors), dtype=np.int64)
    new: list[Node] = []
    for part, size in enumerate(np.diff(np.arange(rounds + 1) * shape.continuations // rounds).tolist()):
        if part:
            score_new(params, nodes)
            anchors = _after(anchors, nodes, new)
        part_shape = replace(shape, continuations=size)
        if arm.is_local:
            counts_A = plan_by_tree(arm, anchors, bare, part_shape, rng_S)
        else:
            counts_A = arm.plan_continuations(anchors, bare, part_shape, rng)
        new = _continue(context, sample, nodes, anchors.node_A, granted_A, counts_A)
        granted_A += counts_A
        nodes += new
    for row, count in zip(anchors.node_A.tolist(), granted_A.tolist(), strict=True):
        if count and nodes[row].parent_id >= 0:  # a root keeps m_i, by which extra rollouts are told from bare ones
            nodes[row].allocated, nodes[row].rule = count, params.allocation.arm
    write_forest(context.output, tree_by_tree(nodes))
    is_prefix_A = anchors.is_prefix_A
    return {
        "anchors": float(len(anchors)),
        "continuations": float(granted_A[is_prefix_A].sum()),
        "extra_roots": float(granted_A[~is_prefix_A].sum()),
        "tokens": float(sum(sum(n.is_action) for n in nodes[len(forest) :])),
    } | sample.usage()


def _continue(
    context: Context, sample: Sampler, nodes: list[Node], node_A: np.ndarray, before_A: np.ndarray, counts_A: np.ndarray
) -> list[Node]:
    """Samples `counts_A` further rollouts from anchors that had `before_A` of them."""
    train = prompts(context.params, "train")
    forest = Forest(nodes)
    starts: list[Start] = []
    for row, before, count in zip(node_A.tolist(), before_A.tolist(), counts_A.tolist(), strict=True):
        if not count:
            continue
        node, prompt, rank = nodes[row], train[nodes[row].prompt_id], int(forest.rank_N[row])
        ids, path = forest.prefix_ids(row), forest.path(row)
        state = sample.world(prompt, [nodes[i].action or "" for i in path[1:]])
        first = before + (node.allocated if node.parent_id < 0 else 0)  # extra root rollouts follow the bare ones
        starts += [
            Start(
                prompt,
                node.tree_id,
                row,
                sibling,
                node.turn,
                ids,
                state,
                derive_seed(context.params.run.seed, context.iteration, prompt.prompt_id, rank, sibling),
            )
            for sibling in range(first, first + count)
        ]
    return sample.sample(starts, len(nodes), context.counter(len(starts)))


def _after(anchors: Anchors, nodes: list[Node], new: list[Node]) -> Anchors:
    """The anchors, with the outcomes of the rollouts that were sampled from them since."""
    position = {row: index for index, row in enumerate(anchors.node_A.tolist())}
    successes_A, failures_A = anchors.successes_A.copy(), anchors.failures_A.copy()
    for leaf in new:
        if leaf.is_terminal and leaf.reward is not None:
            (successes_A if leaf.reward > SUCCESS else failures_A)[position[leaf.anchor_id]] += 1
    return replace(anchors, successes_A=successes_A, failures_A=failures_A)
