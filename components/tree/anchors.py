"""The visited anchors of a forest (Eq. 14): the roots, and the prefixes that the factual rollouts passed through.

    A_i = {(j, t) : 1 <= t < T_ij}

Identical prefixes are one anchor: two rollouts that took the same turns have the same history, so the outcomes below it
are pooled. The caller predicts at `Anchors.node_A` and completes with `Anchors.with_belief`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from components.allocation.anchors import Anchors, Belief
from components.tree.forest import Forest
from components.tree.schema import Node, Origin
from components.tree.trie import merge

SUCCESS = 0.5  # a reward above it counts as a success, so that graded rewards have an outcome too


def visited_anchors(forest: Forest) -> Anchors:
    """All anchors that continuations can be sampled from (Eq. 14), in the order of their (first) nodes.

    Only factual rollouts count: continuations are leaves of one expansion round and are not expanded again.

    Returns:
        Anchors with the nodes' own beliefs if every anchor has one, else with ignorance.
    """
    first_N = merged_prefixes(forest)
    successes, failures, rollouts, tokens = (np.zeros(len(forest), dtype=np.int64) for _ in range(4))
    surprise, sampled = np.zeros(len(forest)), np.zeros(len(forest), dtype=np.int64)
    for leaf in forest.leaves_L[~forest.is_counterfactual_N[forest.leaves_L]].tolist():
        reward, suffix = forest.reward_N[leaf], 0
        path = forest.path(leaf)
        for row, child in zip(path[-2::-1], path[:0:-1], strict=True):  # from the leaf up; at `row`, `child` was taken
            anchor = first_N[row]
            suffix += int(forest.action_tokens_N[child])
            rollouts[anchor] += 1
            tokens[anchor] += suffix
            successes[anchor] += reward > SUCCESS
            failures[anchor] += reward <= SUCCESS
            node = forest.nodes[child]
            surprise[anchor] -= sum(p for p, acted in zip(node.logprobs, node.is_action, strict=True) if acted)
            sampled[anchor] += forest.action_tokens_N[child]
    factual_N = np.array([n.origin != Origin.COUNTERFACTUAL for n in forest.nodes], dtype=bool)
    node_A = np.flatnonzero(factual_N & ~forest.is_terminal_N & (first_N == np.arange(len(forest))))
    nodes = [forest.nodes[row] for row in node_A.tolist()]
    return Anchors(
        node_A=node_A,
        tree_A=forest.tree_N[node_A],
        turn_A=forest.turn_N[node_A],
        successes_A=successes[node_A],
        failures_A=failures[node_A],
        belief=stored_belief(nodes) if all(n.v_hat is not None for n in nodes) else Belief.ignorant(len(nodes)),
        surprisal_A=_mean(surprise[node_A], sampled[node_A]),
        suffix_tokens_A=_mean(tokens[node_A], rollouts[node_A]),
    )


def from_stage_1(forest: Forest, leaf: int) -> bool:
    """Whether a rollout was planned in stage 1: a fresh sample of the policy at its root.

    The extra root rollouts of stage 2 were not: a tree gets them because its first rollouts agreed or had no prefix.
    Refills of stage 1 were. Where an arm refills a prompt until it is balanced (`reinforce-ada`), their number depends
    on outcomes.
    """
    node = forest.nodes[leaf]
    return node.origin == Origin.FACTUAL and node.sibling < forest.nodes[node.anchor_id].allocated


def merged_prefixes(forest: Forest) -> np.ndarray:
    """For each node, the first node of its tree with the same turns, token by token, from the root on; int64 (N,).

    A terminal node stands for itself: a rollout that has ended is an outcome, not a place to continue from.
    """
    edges = ((n.parent_id, None if n.is_terminal or n.parent_id < 0 else tuple(n.token_ids)) for n in forest.nodes)
    return np.array(merge(edges), dtype=np.int64)


def stored_belief(nodes: Sequence[Node]) -> Belief:
    """The beliefs at these nodes before anything was sampled below them; each must have a `v_hat`."""
    concentration = [np.inf if n.concentration is None else n.concentration for n in nodes]
    return Belief(np.array([n.v_hat for n in nodes], dtype=np.float64), np.array(concentration, dtype=np.float64))


def _mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    mean = np.full(len(total), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean
