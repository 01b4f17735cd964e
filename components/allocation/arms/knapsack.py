"""`knapsack`: counts by the value of a mixed group (Knapsack RL, arXiv 2509.25849)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import groups_in, uniform_prompts
from components.allocation.roots import plan_roots


class Knapsack(Arm):
    """Maximises sum_i V_root(n_i; p_i) p_i (1 - p_i)^2 over a uniformly drawn batch of units // G prompts.

    The weight approximates how much a success rate can rise, so hard prompts count more than easy ones. The source
    solves a knapsack by dynamic programming, with bounds on every count; here the threshold planner solves it exactly,
    a count may be 0, and the cap is the run's. The rate p is the belief's mean, as in the source.
    """

    name = "knapsack"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        batch = uniform_prompts(len(pool), groups_in(budget), rng)
        rate, units = pool.mean_A[batch], groups_in(budget) * budget.group_size
        weight = rate * (1.0 - rate) ** 2
        counts_P = np.zeros(len(pool), dtype=np.int64)
        counts_P[batch] = plan_roots(Belief.point(rate), units, budget.max_per_prompt, rng, weight_P=weight)
        return counts_P
