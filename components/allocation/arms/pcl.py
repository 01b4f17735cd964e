"""`pcl`: flat groups of the prompts that the predictor finds hardest to call."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.draws import flat_groups, groups_in, nearest_to_half


class Pcl(Arm):
    """G factual rollouts for each of the units // G prompts whose predicted success is nearest 0.5; ties at random."""

    name = "pcl"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        nearest = nearest_to_half(pool.mean_A, groups_in(budget), rng)
        return flat_groups(nearest, len(pool), budget.group_size)
