"""`tree_grpo`: siblings and the whole group, added (Tree-GRPO)."""

from __future__ import annotations

from components.tree.edges import edge_advantages
from components.tree.forest import Forest
from components.tree.groups import normalised
from components.tree.terms import Advantage, Terms, leaf_terms
from components.tree.values import child_values


class TreeGrpo(Advantage):
    """A = A_intra + A_inter, each normalised on its own, then added; mean over a leaf's tokens, then over leaves.

    App. E.3, E.4; the paper's choice for function calling. A_inter compares the leaf with all leaves of the prompt, as
    `grpo` does. A_intra compares the node's edge with its siblings under one parent, as `treerpo` does, and is 0 where
    they agree. Normalising the sum, or by group and then by tree, would erase what the trees of one prompt say about
    each other.
    """

    name = "tree_grpo"

    def terms(self, forest: Forest) -> Terms:
        intra = edge_advantages(forest, child_values(forest), normalised)
        return leaf_terms(forest, normalised, intra)
