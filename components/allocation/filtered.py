"""Flat groups, the dead ones dropped and refilled within the budget (DAPO): what two arms share."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.draws import flat_groups, groups_in


class Filtered(Arm):
    """Aims at half as many mixed groups as the budget pays for, and samples new prompts for those that are missing.

    DAPO samples until a batch of mixed groups is full, or fails. Here the budget is the same as for every arm, so the
    aim is set at half of it, and stage 1 ends when the aim is reached, the budget is spent or the pool is exhausted:
    whatever is mixed by then is trained on, and what is not spent is reported. Dead groups leave the loss in any arm
    (see `components.tree.advantages`); what this one adds is the refill.
    """

    is_local = False
    refills = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        affordable = groups_in(budget) - int(seen.sampled_P.sum()) // budget.group_size
        missing = max(1, groups_in(budget) // 2) - int(seen.is_mixed_P.sum())
        order = self.order(pool, rng)
        fresh = order[seen.sampled_P[order] == 0]
        return flat_groups(fresh[: max(0, min(affordable, missing))], len(pool), budget.group_size)

    def order(self, pool: Belief, rng: np.random.Generator) -> np.ndarray:
        """The prompts in the order in which they are to be sampled; int64 (P,)."""
        raise NotImplementedError
