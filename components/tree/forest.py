"""The rollout forest in memory: nodes, and the arrays that the mathematics works on.

Arrays over nodes (`_N`) are indexed by `node_id`, which equals the row number; those over tokens (`_T`) hold the tokens
of all nodes, one node after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from components.tree.schema import Node, Origin, Status, nodes_to_table, table_to_nodes


@dataclass(frozen=True)
class Forest:
    """The trees of one iteration.

    The list is read-only once the forest is made: the arrays below are computed once.

    Raises:
        ValueError: if a node's id is not its row number, or a parent does not come before its child in the same tree.
    """

    nodes: list[Node]

    def __post_init__(self) -> None:
        for row, node in enumerate(self.nodes):
            if node.node_id != row:
                raise ValueError(f"row {row} holds node_id {node.node_id}; a forest's node ids are its row numbers")
            if node.parent_id >= row or (node.parent_id < 0) != (node.origin == Origin.ROOT):
                raise ValueError(
                    f"node {row}: parent_id {node.parent_id} must name an earlier row (-1 exactly at a root)"
                )
            if node.parent_id >= 0 and self.nodes[node.parent_id].tree_id != node.tree_id:
                raise ValueError(f"node {row}: parent {node.parent_id} lies in another tree")

    @classmethod
    def from_table(cls, table: pa.Table) -> Forest:
        return cls(table_to_nodes(table))

    def to_table(self) -> pa.Table:
        return nodes_to_table(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def parent_N(self) -> np.ndarray:
        """Row of each node's parent, -1 at roots; int64."""
        return np.array([n.parent_id for n in self.nodes], dtype=np.int64)

    @cached_property
    def tree_N(self) -> np.ndarray:
        """Tree of each node; int64."""
        return np.array([n.tree_id for n in self.nodes], dtype=np.int64)

    @cached_property
    def turn_N(self) -> np.ndarray:
        return np.array([n.turn for n in self.nodes], dtype=np.int64)

    @cached_property
    def is_root_N(self) -> np.ndarray:
        return self.parent_N < 0

    @cached_property
    def is_terminal_N(self) -> np.ndarray:
        """Whether a rollout ends at the node; bool."""
        return np.array([n.is_terminal for n in self.nodes], dtype=bool)

    @cached_property
    def is_counterfactual_N(self) -> np.ndarray:
        return np.array([n.origin == Origin.COUNTERFACTUAL for n in self.nodes], dtype=bool)

    @cached_property
    def reward_N(self) -> np.ndarray:
        """Terminal reward, NaN at inner nodes and at leaves that could not be scored; float64."""
        scored = (n.reward if n.is_terminal and n.status == Status.OK else None for n in self.nodes)
        return np.array(list(scored), dtype=np.float64)  # None becomes NaN

    @cached_property
    def action_tokens_N(self) -> np.ndarray:
        """Sampled tokens of each node, the ones that are trained on; int64."""
        return np.array([sum(n.is_action) for n in self.nodes], dtype=np.int64)

    @cached_property
    def tokens_N(self) -> np.ndarray:
        """Tokens of each node, observations included; int64."""
        return np.array([len(n.token_ids) for n in self.nodes], dtype=np.int64)

    @cached_property
    def first_N(self) -> np.ndarray:
        """Where each node's tokens begin among all tokens; int64."""
        first: np.ndarray = np.cumsum(self.tokens_N) - self.tokens_N
        return first

    @cached_property
    def token_ids_T(self) -> np.ndarray:
        """Token ids; int64."""
        return np.array([token for n in self.nodes for token in n.token_ids], dtype=np.int64)

    @cached_property
    def is_action_T(self) -> np.ndarray:
        """Which tokens were sampled; bool."""
        return np.array([acted for n in self.nodes for acted in n.is_action], dtype=bool)

    @cached_property
    def logprob_T(self) -> np.ndarray:
        """The engine's log-probabilities of the sampled tokens, NaN at the others; float64."""
        return np.array([value for n in self.nodes for value in n.logprobs], dtype=np.float64)

    @cached_property
    def leaves_L(self) -> np.ndarray:
        """Rows of all terminal nodes, scored or not; int64."""
        return np.flatnonzero(self.is_terminal_N)

    @cached_property
    def scored_L(self) -> np.ndarray:
        """Rows of the terminal nodes that carry a reward; int64."""
        return np.flatnonzero(self.is_terminal_N & np.isfinite(self.reward_N))

    def by_tree(self, rows: np.ndarray) -> list[np.ndarray]:
        """Splits rows by their tree, in the order of the trees; trees without any of the rows are left out."""
        order = rows[np.argsort(self.tree_N[rows], kind="stable")]
        return np.split(order, np.flatnonzero(np.diff(self.tree_N[order])) + 1) if len(order) else []

    @cached_property
    def rank_N(self) -> np.ndarray:
        """Position of each node among those of its tree, 0 at roots, whatever other trees there are; int64."""
        order = np.argsort(self.tree_N, kind="stable")
        sorted_N = self.tree_N[order]
        rank_N = np.empty(len(self), dtype=np.int64)
        rank_N[order] = np.arange(len(self)) - np.searchsorted(sorted_N, sorted_N)
        return rank_N

    def path(self, node_id: int) -> list[int]:
        """Rows from the root to `node_id`, both included."""
        rows = []
        while node_id >= 0:
            rows.append(node_id)
            node_id = self.nodes[node_id].parent_id
        return rows[::-1]

    def prefix_ids(self, node_id: int) -> list[int]:
        """Token ids of the history up to and including `node_id`: exactly what the policy saw and sampled."""
        return [token for row in self.path(node_id) for token in self.nodes[row].token_ids]


def tree_by_tree(nodes: list[Node]) -> Forest:
    """The forest of `nodes` in canonical order: one tree after the other, each in the order in which it grew.

    A stage appends what it samples for all trees to its list; in this order, a tree's rows do not depend on how many
    trees were sampled together. Rewrites the nodes' ids.
    """
    ordered = sorted(nodes, key=lambda node: node.tree_id)
    row_of = {node.node_id: row for row, node in enumerate(ordered)} | {-1: -1}
    for node in ordered:
        node.node_id, node.parent_id, node.anchor_id = (
            row_of[i] for i in (node.node_id, node.parent_id, node.anchor_id)
        )
    return Forest(ordered)


def join(forests: list[Forest]) -> Forest:
    """One forest of the trees of several, in their order."""
    nodes: list[Node] = []
    trees = 0
    for forest in forests:
        first = len(nodes)
        for node in forest.nodes:
            parent, anchor = (i if i < 0 else i + first for i in (node.parent_id, node.anchor_id))
            tree, row = node.tree_id + trees, node.node_id + first
            nodes.append(replace(node, tree_id=tree, node_id=row, parent_id=parent, anchor_id=anchor))
        trees += int(forest.is_root_N.sum())
    return Forest(nodes)
