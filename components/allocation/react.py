"""`react`: the untrained policy in the same scaffold."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Belief, OneRound, Shape


class React(OneRound):
    """Samples nothing for training: the curve of the policy as it is."""

    uses_predictor = False

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(len(pool), dtype=np.int64)
