"""`trace`: both stages planned (active-active in Table 1)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Anchors, Arm, Belief, Budget, RoundsParams, Seen
from components.allocation.prefixes import fall_back_to_roots, is_open, plan_prefixes
from components.allocation.roots import plan_roots


class Trace(Arm):
    """Roots by Eq. 13 over the whole pool, continuations by Eq. 16 within each active prompt."""

    name = "trace"
    Params = RoundsParams
    uses_predictor = True
    branches = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return plan_roots(pool, budget.root_units, budget.max_per_prompt, rng)

    def plan_continuations(self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
        budget_S = factual_S * budget.continuations
        counts_A = fall_back_to_roots(anchors, is_open(anchors), budget_S)
        counts_A += plan_prefixes(anchors, budget_S, rng)
        return counts_A
