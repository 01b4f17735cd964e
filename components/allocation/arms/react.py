"""`react`: the untrained policy in the same scaffold."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget


class React(Arm):
    """Samples nothing for training: the curve of the policy as it is."""

    name = "react"

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(len(pool), dtype=np.int64)
