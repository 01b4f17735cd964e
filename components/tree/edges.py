"""Edges of the tree: what siblings under one parent say about each other.

An edge begins at a child of a branching parent (or of the root) and runs down to the next branching: an only child
continues its parent's edge, since between two branchings there is one decision to judge, however many turns it took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from components.tree.forest import Forest
from components.tree.groups import REASONS, why_dropped

Compare = Callable[..., np.ndarray]


@dataclass(frozen=True)
class EdgeAdvantages:
    """Sibling advantages of a forest.

    Attributes:
        advantage_N: Advantage of the edge that each node lies on; 0 where it has none. float64.
        edge_N: First node of that edge, -1 where the edge has no contrast or no scored leaf; int64.
        leaf_N: First scored leaf below each node, -1 where there is none; int64.
        groups: Sets of siblings: the children of each root and of each branching node.
        dropped: Number of them without contrast, by reason.
    """

    advantage_N: np.ndarray
    edge_N: np.ndarray
    leaf_N: np.ndarray
    groups: int
    dropped: dict[str, int]


def edge_advantages(
    forest: Forest, value_N: np.ndarray, compare: Compare, weight_N: np.ndarray | None = None
) -> EdgeAdvantages:
    """Compares the children of every root and of every branching node.

    Args:
        forest: The trees.
        value_N: Value of each node, NaN where not known; float64.
        compare: Advantages of a group from its values (and, if given, its weights), NaN for masked members.
        weight_N: Weight of each node among its siblings, handed to `compare`; float64.
    """
    parents = forest.parent_N.tolist()
    children: list[list[int]] = [[] for _ in parents]
    first_leaf = np.where(np.isfinite(forest.reward_N), np.arange(len(forest)), -1).tolist()
    for row in range(len(parents) - 1, -1, -1):  # children before their parents
        parent = parents[row]
        if parent >= 0:
            children[parent].append(row)
            if first_leaf[row] >= 0 and (first_leaf[parent] < 0 or first_leaf[row] < first_leaf[parent]):
                first_leaf[parent] = first_leaf[row]
    advantage_N, edge_N = np.zeros(len(forest)), np.full(len(forest), -1, dtype=np.int64)
    groups, dropped = 0, dict.fromkeys(REASONS, 0)
    for row, below in enumerate(children):
        siblings = np.array(below[::-1], dtype=np.int64)
        scored = siblings[np.isfinite(value_N[siblings])]
        if len(siblings) >= 2 or (parents[row] < 0 and len(siblings)):  # an only child of a root is a dropped singleton
            groups += 1
            if reason := why_dropped(value_N[siblings]):
                dropped[reason] += 1
            else:
                args = (value_N[scored],) if weight_N is None else (value_N[scored], weight_N[scored])
                advantage_N[scored] = compare(*args)
                edge_N[scored] = scored
        if len(scored) == 1 and parents[row] >= 0:  # nobody to compare with: the parent's edge goes on
            advantage_N[scored], edge_N[scored] = advantage_N[row], edge_N[row]
    return EdgeAdvantages(advantage_N, edge_N, np.array(first_leaf, dtype=np.int64), groups, dropped)
