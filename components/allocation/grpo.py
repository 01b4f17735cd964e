"""`grpo`: flat groups of uniformly drawn prompts."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Belief, OneRound, Shape
from components.allocation.draws import flat_groups, groups_in, uniform_prompts


class Grpo(OneRound):
    """G bare rollouts for each of units // G uniformly drawn prompts; nothing is branched."""

    uses_predictor = False

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return flat_groups(uniform_prompts(len(pool), groups_in(shape), rng), len(pool), shape.group_size)
