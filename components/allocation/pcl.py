"""`pcl`: flat groups of the prompts that the predictor finds hardest to call."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Belief, OneRound, Shape
from components.allocation.draws import flat_groups, groups_in


class Pcl(OneRound):
    """G bare rollouts for each of the units // G prompts whose predicted success is nearest 0.5; ties at random."""

    uses_predictor = True

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        nearest = nearest_to_half(pool.mean_A, groups_in(shape), rng)
        return flat_groups(nearest, len(pool), shape.group_size)


def nearest_to_half(rate_P: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """The `number` prompts whose rate is nearest 0.5, nearest first; equally near ones in random order. int64."""
    return np.lexsort((rng.random(len(rate_P)), np.abs(rate_P - 0.5)))[:number]
