"""`trace-root`: the first half of TRACE (active-uniform in Table 1)."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Anchors, Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.draws import uniform_prefixes
from components.allocation.roots import plan_roots


class TraceRoot(Arm):
    """Active-uniform: roots by Eq. 13, continuations as in `treepo`."""

    name = "trace-root"
    uses_predictor = True
    branches = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        return plan_roots(pool, budget.root_units, budget.max_per_prompt, rng)

    def plan_continuations(
        self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: np.random.Generator
    ) -> np.ndarray:
        return uniform_prefixes(anchors, factual_S, budget, rng)
