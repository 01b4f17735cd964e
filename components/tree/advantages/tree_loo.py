"""`tree_loo`: siblings under one parent, each left out of its own baseline."""

from __future__ import annotations

import numpy as np

from components.tree.edges import edge_advantages
from components.tree.forest import Forest
from components.tree.groups import leave_one_out
from components.tree.terms import Advantage, Terms, edge_terms
from components.tree.values import leaf_values


class TreeLoo(Advantage):
    """A_c = V(c) - mean of its siblings' V weighted by their leaves, V the leaf-count-weighted value of Eq. 18.

    As `treerpo`, with two changes, and not scaled. The baseline leaves the edge itself out, so that it does not depend
    on the action; and a child counts by its leaves, so that one continuation does not count as much as four.
    """

    name = "tree_loo"

    def terms(self, forest: Forest) -> Terms:
        value_N, count_N = leaf_values(forest)
        return edge_terms(forest, edge_advantages(forest, value_N, leave_one_out, count_N.astype(np.float64)))
