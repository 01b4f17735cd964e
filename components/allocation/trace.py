"""`trace`: both stages planned (active-active in Table 1); `trace-flat`: the first alone."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Anchors, Belief, OneRound, Shape
from components.allocation.prefixes import fall_back_to_roots, is_open, plan_prefixes
from components.allocation.roots import plan_roots


class Trace(OneRound):
    """Roots by Eq. 13 over the whole pool, continuations by Eq. 16 within each active prompt."""

    uses_predictor = True

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return plan_roots(pool, shape.root_units, shape.max_per_prompt, rng)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        budget = bare * shape.continuations
        counts = plan_prefixes(anchors, budget, rng)
        counts += fall_back_to_roots(anchors, is_open(anchors), budget)
        return counts


class TraceFlat(OneRound):
    """The whole budget as bare rollouts by Eq. 13, and no continuations: what stage 2 is worth shows against this."""

    uses_predictor = True

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return plan_roots(pool, int(shape.units), shape.max_per_prompt, rng)
