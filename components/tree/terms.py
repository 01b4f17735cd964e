"""The terms of the loss: advantages of tokens, and their weights (App. E.3, E.4).

A term says: the action tokens of node `node_K`, in the context of the path to leaf `leaf_K`, carry the advantage
`advantage_K`, and each of these tokens weighs `weight_K`:

    loss = - sum_K weight_K sum_{tokens of node_K} min(rho A, clip(rho) A)

The weights sum to 1 over all tokens of all terms. What is dropped leaves numerator and denominator alike. A node
shared by several leaves has one term for each of them where advantages belong to leaves, as if the rollouts were flat:
the forward pass may be shared, the terms are never added before the clip. Where advantages belong to edges of the tree,
a node has one term. Siblings that sampled the same action tokens stay separate nodes: each is a draw of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan

import numpy as np

from components.registry import Plugin
from components.tree.edges import EdgeAdvantages
from components.tree.forest import Forest
from components.tree.groups import REASONS, why_dropped


@dataclass(frozen=True)
class Terms:
    """The advantage that each node's action tokens carry, and how much it weighs.

    Attributes:
        leaf_K: Row of the leaf whose path is the context; int64.
        node_K: Row of the node whose action tokens are meant, on that path; int64.
        advantage_K: What these tokens carry; float64. Masked and dropped members have no term.
        weight_K: Weight of each action token of the node; sums to 1 over all tokens of all terms. float64.
        groups: Groups that were formed.
        dropped: Number of groups without contrast, by reason.
    """

    leaf_K: np.ndarray
    node_K: np.ndarray
    advantage_K: np.ndarray
    weight_K: np.ndarray
    groups: int
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.node_K)

    def advantage_N(self, nodes: int) -> np.ndarray:
        """Mean advantage that each node's action tokens carry, by weight; float64 (N,), NaN without a term."""
        weight_N = np.bincount(self.node_K, weights=self.weight_K, minlength=nodes)
        total_N = np.bincount(self.node_K, weights=self.weight_K * self.advantage_K, minlength=nodes)
        mean_N = np.full(nodes, np.nan)
        np.divide(total_N, weight_N, out=mean_N, where=weight_N > 0)
        return mean_N

    def metrics(self) -> dict[str, float]:
        """Groups, and the share of them that each reason dropped."""
        total = max(self.groups, 1)
        return {"groups/total": float(self.groups)} | {
            f"groups/{reason}_frac": count / total for reason, count in self.dropped.items()
        }


class Advantage(Plugin):
    """From a forest to the terms of the loss."""

    def terms(self, forest: Forest) -> Terms:
        """The terms, whose weights sum to 1 over all tokens; empty where no group has contrast."""
        raise NotImplementedError


def leaf_terms(
    forest: Forest, advantage: Callable[[np.ndarray], np.ndarray], intra: EdgeAdvantages | None = None
) -> Terms:
    """Terms for every node on the path to every scored leaf of a prompt with contrast.

    Args:
        forest: The trees.
        advantage: From the rewards of a prompt's leaves (M,), NaN where not scored, to each leaf's advantage (M,).
        intra: What is added at each node.
    """
    dropped = dict.fromkeys(REASONS, 0)
    trees = forest.by_tree(forest.leaves_L)
    terms: list[tuple[int, int, float, float]] = []
    trained = 0
    for members_M in trees:
        if reason := why_dropped(forest.reward_N[members_M]):
            dropped[reason] += 1
            continue
        for leaf, inter in zip(members_M.tolist(), advantage(forest.reward_N[members_M]).tolist(), strict=True):
            path = [node for node in forest.path(leaf) if forest.action_tokens_N[node]]
            if isnan(inter) or not path:  # not scored, or nothing was sampled
                continue
            trained += 1
            each = 1.0 / int(forest.action_tokens_N[path].sum())
            terms += [(leaf, node, inter + (intra.advantage_N[node] if intra else 0.0), each) for node in path]
    leaf_K, node_K, advantage_K, weight_K = np.array(terms, dtype=np.float64).reshape(-1, 4).T
    rows = leaf_K.astype(np.int64), node_K.astype(np.int64)
    return Terms(*rows, advantage_K, weight_K / max(trained, 1), len(trees), dropped)


def edge_terms(forest: Forest, edges: EdgeAdvantages) -> Terms:
    """One term for each node of each contributing edge (App. E.3), in the context of the first scored leaf below it."""
    node_K = np.flatnonzero((edges.edge_N >= 0) & (forest.action_tokens_N > 0))
    edge_K = edges.edge_N[node_K]
    tokens_N = np.bincount(edge_K, weights=forest.action_tokens_N[node_K], minlength=len(forest))  # at first nodes
    contributing = max(int((tokens_N > 0).sum()), 1)
    weight_K = 1.0 / (tokens_N[edge_K] * contributing)
    return Terms(edges.leaf_N[node_K], node_K, edges.advantage_N[node_K], weight_K, edges.groups, edges.dropped)
