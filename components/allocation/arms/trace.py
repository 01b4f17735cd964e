"""`trace`: both stages planned (active-active in Table 1)."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Anchors, Belief, Seen
from components.allocation.arm import Arm, RoundsParams
from components.allocation.budget import Budget
from components.allocation.prefixes import plan_or_fall_back
from components.allocation.roots import plan_roots


class Trace(Arm):
    """Roots by Eq. 13 over the whole pool, continuations by Eq. 16 within each active prompt."""

    name = "trace"
    Params = RoundsParams
    uses_predictor = True
    branches = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        return plan_roots(pool, budget.root_units, budget.max_per_prompt, rng)

    def plan_continuations(
        self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: np.random.Generator
    ) -> np.ndarray:
        return plan_or_fall_back(anchors, factual_S * budget.continuations, rng)
