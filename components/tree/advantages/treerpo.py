"""`treerpo`: siblings under one parent, normalised (TreeRPO)."""

from __future__ import annotations

from components.tree.edges import edge_advantages
from components.tree.forest import Forest
from components.tree.groups import normalised
from components.tree.terms import Advantage, Terms, edge_terms
from components.tree.values import child_values


class TreeRPO(Advantage):
    """A_c = (R(c) - mean) / std over the siblings under one parent, R backed up as unweighted means of the children.

    App. E.3, E.4; the paper's choice for mathematics and question answering. Mean over an edge's tokens, then over the
    contributing edges. An only child continues its parent's edge; an only child of the root has no siblings and no
    advantage; siblings that agree leave the loss.
    """

    name = "treerpo"

    def terms(self, forest: Forest) -> Terms:
        return edge_terms(forest, edge_advantages(forest, child_values(forest), normalised))
