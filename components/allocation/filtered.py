"""`grpo-filter` and `pcl-filter`: flat groups, the dead ones dropped and refilled within the budget (DAPO)."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Anchors, Belief, Seen, Shape
from components.allocation.draws import flat_groups, groups_in
from components.allocation.pcl import nearest_to_half


class _Filtered:
    """Aims at half as many mixed groups as the budget pays for, and samples new prompts for those that are missing.

    DAPO samples until a batch of mixed groups is full, or fails. Here the budget is the same as for every arm, so the
    aim is set at half of it, and stage 1 ends when the aim is reached, the budget is spent or the pool is exhausted:
    whatever is mixed by then is trained on, and what is not spent is reported. Dead groups leave the loss in any arm
    (see `components.tree.advantages`); what this one adds is the refill.
    """

    uses_predictor: bool
    is_local = False

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        fresh_P = np.zeros(len(pool), dtype=np.int64)
        return self.refill(pool, Seen(fresh_P, fresh_P, fresh_P), shape, rng)

    def refill(self, pool: Belief, seen: Seen, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        affordable = groups_in(shape) - int(seen.sampled_P.sum()) // shape.group_size
        missing = max(1, groups_in(shape) // 2) - int(seen.is_mixed_P.sum())
        order = self._order(pool, rng)
        fresh = order[seen.sampled_P[order] == 0]
        return flat_groups(fresh[: max(0, min(affordable, missing))], len(pool), shape.group_size)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        return np.zeros(len(anchors), dtype=np.int64)

    def _order(self, pool: Belief, rng: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


class GrpoFilter(_Filtered):
    """G flat rollouts for uniformly drawn prompts, refilled."""

    uses_predictor = False

    def _order(self, pool: Belief, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(len(pool))


class PclFilter(_Filtered):
    """G flat rollouts for the prompts nearest 0.5 by the predictor, refilled: the fourth cell of {uniform, predictor} x
    {no filter, filter}."""

    uses_predictor = True

    def _order(self, pool: Belief, rng: np.random.Generator) -> np.ndarray:
        return nearest_to_half(pool.mean_A, len(pool), rng)
