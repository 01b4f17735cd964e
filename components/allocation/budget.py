"""The budget of an iteration, in units, which is the same for every arm.

A factual rollout costs 1 unit, a continuation from a prefix half a unit, since it starts half-way on average (App. E.5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from components.allocation.anchors import Anchors

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
        """The whole budget: M (1 + N/2)."""
        return self.root_units * (ROOT_COST + CONTINUATION_COST * self.continuations)


def cost(anchors: Anchors, counts_A: np.ndarray) -> float:
    """Units that further rollouts at anchors cost: 1 at a root, a half at a prefix (App. E.5)."""
    return float(np.where(anchors.is_prefix_A, CONTINUATION_COST, ROOT_COST) @ counts_A)
