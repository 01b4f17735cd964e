"""`pcl-filter`: `grpo-filter` with the prompts of `pcl`."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Belief
from components.allocation.arms.grpo_filter import GrpoFilter
from components.allocation.draws import nearest_to_half


class PclFilter(GrpoFilter):
    """Flat groups for the prompts predicted nearest 0.5, refilled: {uniform, predictor} x {no filter, filter}."""

    name = "pcl-filter"
    uses_predictor = True

    def order(self, pool: Belief, rng: Generator) -> np.ndarray:
        return nearest_to_half(pool.mean_A, len(pool), rng)
