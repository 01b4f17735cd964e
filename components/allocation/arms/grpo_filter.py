"""`grpo-filter`: flat groups of uniformly drawn prompts; dead ones are replaced (DAPO)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import flat_groups, groups_in


class GrpoFilter(Arm):
    """Flat groups for uniformly drawn prompts, refilled until half of what the budget pays for are mixed.

    DAPO samples until a batch of mixed groups is full, or fails. Here the budget is the same as for every arm, so the
    aim is half of it. Stage 1 ends when the aim is reached, the budget is spent or the pool is exhausted: what is mixed
    by then is trained on, and what is not spent is reported. Dead groups leave the loss in every arm; this one refills.
    """

    name = "grpo-filter"
    is_local = False
    refills = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        affordable = groups_in(budget) - int(seen.sampled_P.sum()) // budget.group_size
        missing = max(1, groups_in(budget) // 2) - int(seen.is_mixed_P.sum())
        order = self.order(pool, rng)
        fresh = order[seen.sampled_P[order] == 0]
        return flat_groups(fresh[: max(0, min(affordable, missing))], len(pool), budget.group_size)

    def order(self, pool: Belief, rng: Generator) -> np.ndarray:
        """The prompts in the order in which they are to be sampled; int64 (P,)."""
        return rng.permutation(len(pool))
