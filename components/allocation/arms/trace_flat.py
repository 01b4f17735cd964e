"""`trace-flat`: the first stage of `trace` alone."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.roots import plan_roots


class TraceFlat(Arm):
    """The whole budget as factual rollouts by Eq. 13, and no continuations: what stage 2 is worth shows against this."""

    name = "trace-flat"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        return plan_roots(pool, int(budget.units), budget.max_per_prompt, rng)
