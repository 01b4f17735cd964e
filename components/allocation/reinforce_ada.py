"""`reinforce-ada`: sampling in rounds, and only for prompts that have not shown both outcomes (arXiv 2510.04996)."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Anchors, Belief, Seen, Shape
from components.allocation.draws import flat_groups, groups_in, uniform_prompts


class ReinforceAda:
    """G/2 rollouts a round for a uniformly drawn batch of units // G prompts; a prompt leaves when it is balanced.

    Balanced means at least G/4 successes and G/4 failures (the source's balanced exit for groups of G/2). Rounds end
    when every prompt has left or the budget is spent; in a round that the budget does not fully pay for, prompts are
    drawn at random. Departure: the source then subsamples groups of fixed size; here every paid rollout is trained on.
    """

    uses_predictor = False
    is_local = False

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return flat_groups(uniform_prompts(len(pool), groups_in(shape), rng), len(pool), max(1, shape.group_size // 2))

    def refill(self, pool: Belief, seen: Seen, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        group, enough = max(1, shape.group_size // 2), max(1, shape.group_size // 4)
        balanced_P = (seen.successes_P >= enough) & (seen.failures_P >= enough)
        waiting = rng.permutation(np.flatnonzero((seen.sampled_P > 0) & ~balanced_P))
        affordable = (groups_in(shape) * shape.group_size - int(seen.sampled_P.sum())) // group
        return flat_groups(waiting[: max(0, affordable)], len(pool), group)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        return np.zeros(len(anchors), dtype=np.int64)
