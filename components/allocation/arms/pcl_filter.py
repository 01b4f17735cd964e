"""`pcl-filter`: flat groups of the prompts that the predictor finds hardest to call, refilled."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief
from components.allocation.draws import nearest_to_half
from components.allocation.filtered import Filtered


class PclFilter(Filtered):
    """G flat rollouts for the prompts nearest 0.5 by the predictor, refilled: the fourth cell of {uniform, predictor} x
    {no filter, filter}."""

    name = "pcl-filter"
    uses_predictor = True

    def order(self, pool: Belief, rng: np.random.Generator) -> np.ndarray:
        return nearest_to_half(pool.mean_A, len(pool), rng)
