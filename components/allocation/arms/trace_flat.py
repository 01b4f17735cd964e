"""`trace-flat`: the first stage of `trace` alone."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.roots import plan_roots


class TraceFlat(Arm):
    """The whole budget as factual rollouts by Eq. 13, no continuations: what stage 2 is worth shows against this."""

    name = "trace-flat"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return plan_roots(pool, int(budget.units), budget.max_per_prompt, rng)
