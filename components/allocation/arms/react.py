"""`react`: the untrained policy in the same scaffold."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen


class React(Arm):
    """Samples nothing for training: the curve of the policy as it is."""

    name = "react"
    samples = False

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return np.zeros(len(pool), dtype=np.int64)
