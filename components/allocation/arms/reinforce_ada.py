"""`reinforce-ada`: sampling in rounds, and only for prompts that have not shown both outcomes (arXiv 2510.04996)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import flat_groups, groups_in, uniform_prompts


class ReinforceAda(Arm):
    """G/2 rollouts a round for a uniformly drawn batch of units // G prompts; a prompt leaves when it is balanced.

    Balanced means at least G/4 successes and G/4 failures (the source's balanced exit for groups of G/2). Rounds end
    when every prompt has left or the budget is spent; a round that the budget does not fully pay for draws its prompts
    at random. The source then subsamples groups of fixed size; here every paid rollout is trained on.
    """

    name = "reinforce-ada"
    is_local = False
    refills = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        group, enough = max(1, budget.group_size // 2), max(1, budget.group_size // 4)
        if not seen.sampled_P.any():
            return flat_groups(uniform_prompts(len(pool), groups_in(budget), rng), len(pool), group)
        balanced_P = (seen.successes_P >= enough) & (seen.failures_P >= enough)
        waiting = rng.permutation(np.flatnonzero((seen.sampled_P > 0) & ~balanced_P))
        affordable = (groups_in(budget) * budget.group_size - int(seen.sampled_P.sum())) // group
        return flat_groups(waiting[: max(0, affordable)], len(pool), group)
