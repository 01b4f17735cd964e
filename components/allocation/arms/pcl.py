"""`pcl`: flat groups of the prompts whose outcome is hardest to predict."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import flat_groups, groups_in, nearest_to_half


class Pcl(Arm):
    """G factual rollouts for each of the units // G prompts whose predicted success is nearest 0.5; ties at random."""

    name = "pcl"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return flat_groups(nearest_to_half(pool.mean_A, groups_in(budget), rng), len(pool), budget.group_size)
