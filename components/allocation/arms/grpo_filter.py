"""`grpo-filter`: flat groups of uniformly drawn prompts, refilled (DAPO)."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief
from components.allocation.filtered import Filtered


class GrpoFilter(Filtered):
    """G flat rollouts for uniformly drawn prompts, refilled."""

    name = "grpo-filter"

    def order(self, pool: Belief, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(len(pool))
