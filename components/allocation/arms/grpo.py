"""`grpo`: flat groups of uniformly drawn prompts."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import flat_groups, groups_in, uniform_prompts


class Grpo(Arm):
    """G factual rollouts for each of units // G uniformly drawn prompts; nothing is branched."""

    name = "grpo"

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return flat_groups(uniform_prompts(len(pool), groups_in(budget), rng), len(pool), budget.group_size)
