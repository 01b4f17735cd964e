"""`trace-prefix`: the second half of TRACE (uniform-active in Table 1)."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Anchors, Belief, Seen
from components.allocation.arm import Arm, RoundsParams
from components.allocation.budget import Budget
from components.allocation.draws import uniform_tree_roots
from components.allocation.prefixes import plan_or_fall_back


class TracePrefix(Arm):
    """Uniform-active: roots as in `treepo`, continuations by Eq. 16."""

    name = "trace-prefix"
    Params = RoundsParams
    uses_predictor = True
    branches = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        return uniform_tree_roots(len(pool), budget, rng)

    def plan_continuations(
        self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: np.random.Generator
    ) -> np.ndarray:
        return plan_or_fall_back(anchors, factual_S * budget.continuations, rng)
