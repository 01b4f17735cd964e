"""`grpo`: the group's normalised rewards (GRPO)."""

from __future__ import annotations

from components.tree.forest import Forest
from components.tree.groups import normalised
from components.tree.terms import Advantage, Terms, leaf_terms


class Grpo(Advantage):
    """A = (r - mean) / std over the prompt's scored leaves; mean over a leaf's tokens, then over leaves (App. E.3)."""

    name = "grpo"

    def terms(self, forest: Forest) -> Terms:
        return leaf_terms(forest, normalised)
