"""`rloo`: reward minus the mean of the others (RLOO)."""

from __future__ import annotations

from components.tree.forest import Forest
from components.tree.groups import leave_one_out
from components.tree.terms import Advantage, Terms, leaf_terms


class Rloo(Advantage):
    """A = r - mean of the prompt's other scored leaves; mean over a leaf's tokens, then over leaves. Not scaled."""

    name = "rloo"

    def terms(self, forest: Forest) -> Terms:
        return leaf_terms(forest, leave_one_out)
