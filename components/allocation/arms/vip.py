"""`vip`: counts that minimise the variance of the gradient (VIP, arXiv 2602.01601)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import groups_in, uniform_prompts
from components.allocation.threshold import spread, take_largest
from components.allocation.utilities import contrast


class Vip(Arm):
    """Minimises sum_i q_i / (n_i - 1), q = E[v (1-v)], n_i >= 2, over a uniformly drawn batch of units // G prompts.

    This is the variance of a leave-one-out gradient if the gradients of log-probabilities are alike across prompts. It
    is convex in n_i, so taking the largest decreases q_i / (n (n-1)) is optimal in integers; the source relaxes and
    rounds. The source predicts rates with a Gaussian process on prompt embeddings; here the run's predictor does.
    """

    name = "vip"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        batch = uniform_prompts(len(pool), groups_in(budget), rng)
        q = contrast(pool[batch])
        units = groups_in(budget) * budget.group_size
        cap = max(2, budget.max_per_prompt or units)

        def gain(rows: np.ndarray, item: np.ndarray) -> np.ndarray:
            decrease: np.ndarray = q[rows] / ((item + 1.0) * item)  # item 1 is the third rollout
            return decrease

        one, left = np.zeros(len(batch), dtype=np.int64), np.array([units - 2 * len(batch)])
        taken, tied = take_largest(gain, np.full(len(batch), cap - 2), one, left)
        counts_P = np.zeros(len(pool), dtype=np.int64)
        counts_P[batch] = 2 + taken + spread(tied, one, left - taken.sum(), rng)
        return counts_P
