"""The budget of an iteration, in units, which is the same for every arm.

A factual rollout costs 1 unit, a continuation from a prefix half a unit: it starts half-way on average (App. E.5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

ROOT_COST = 1.0
CONTINUATION_COST = 0.5


@dataclass(frozen=True)
class Budget:
    """What an iteration may spend.

    Attributes:
        root_units: M, factual rollouts of the arms that branch.
        continuations: N, continuations granted per factual rollout.
        group_size: G, rollouts per prompt of the flat arms.
        max_per_prompt: Optional cap on the factual rollouts of one prompt.
    """

    root_units: int
    continuations: int
    group_size: int = 8
    max_per_prompt: int | None = None

    @property
    def units(self) -> float:
        """The whole budget: M (1 + N/2) (App. E.5)."""
        return self.root_units * (ROOT_COST + CONTINUATION_COST * self.continuations)

    def parts(self, rounds: int) -> list[Budget]:
        """The budget of each round of stage 2: its part of the continuations, which together are all of them."""
        sizes = np.diff(np.arange(rounds + 1) * self.continuations // rounds).tolist()
        return [replace(self, continuations=size) for size in sizes]


def cost_of(is_prefix_A: np.ndarray) -> np.ndarray:
    """Units that one further rollout at each anchor costs: 1 at a root, a half at a prefix (App. E.5); float64 (A,)."""
    return np.where(is_prefix_A, CONTINUATION_COST, ROOT_COST)
