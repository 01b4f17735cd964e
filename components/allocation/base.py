"""What an allocation rule is: counts of rollouts for anchors, under a budget in units.

A bare rollout from a root costs 1 unit, a continuation from a prefix half a unit, since it starts half-way on average
(App. E.5). Axis suffixes: `_P` prompts of the candidate pool, `_A` anchors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

ROOT_COST = 1.0
CONTINUATION_COST = 0.5


@dataclass(frozen=True)
class Belief:
    """What is believed of the chance of success V at each anchor: a Beta law, or a point.

    Attributes:
        mean_A: Mean of V, in [0, 1]; float64.
        concentration_A: alpha + beta of the Beta law; `inf` where V is taken to equal its mean (the plug-in of Eq. 12).
    """

    mean_A: np.ndarray
    concentration_A: np.ndarray

    @classmethod
    def point(cls, mean_A: np.ndarray) -> Belief:
        """A belief that takes every mean for the truth."""
        mean_A = np.asarray(mean_A, dtype=np.float64)
        return cls(mean_A, np.full(mean_A.shape, np.inf))

    def __len__(self) -> int:
        return len(self.mean_A)

    def __getitem__(self, rows: np.ndarray | slice) -> Belief:
        return Belief(self.mean_A[rows], self.concentration_A[rows])


@dataclass(frozen=True)
class Anchors:
    """Visited anchors of one iteration's active prompts, after their bare rollouts are verified.

    Every active prompt has one root anchor (turn 0); the others are visited, non-terminal prefixes, with prefixes of
    identical token sequences merged into one anchor.

    Attributes:
        node_A: Row in the forest (for a merged anchor, the first of its nodes); int64.
        tree_A: Tree of the anchor; int64.
        turn_A: Depth; 0 at roots; int64.
        successes_A, failures_A: Scored factual leaves below the anchor, by outcome; int64.
        belief: Predicted chance of success at the anchor.
    """

    node_A: np.ndarray
    tree_A: np.ndarray
    turn_A: np.ndarray
    successes_A: np.ndarray
    failures_A: np.ndarray
    belief: Belief

    def __len__(self) -> int:
        return len(self.node_A)


@dataclass(frozen=True)
class Shape:
    """The shape of an iteration's budget, which is the same for every arm.

    Attributes:
        root_units: M, bare rollouts of the arms that branch.
        continuations: N, continuations granted per bare rollout.
        group_size: G, rollouts per prompt of the flat arms.
        max_per_prompt: Optional cap on the bare rollouts of one prompt.
    """

    root_units: int
    continuations: int
    group_size: int = 8
    max_per_prompt: int | None = None

    @property
    def units(self) -> float:
        """The whole budget of an iteration: M (1 + N/2)."""
        return self.root_units * (ROOT_COST + CONTINUATION_COST * self.continuations)


class Allocator(Protocol):
    """One arm: where the budget goes. Pure, vectorised, deterministic given the generator; never over the budget."""

    uses_predictor: bool

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        """Stage 1, before sampling: bare rollouts for each prompt of the pool, int64 (P,)."""

    def plan_continuations(self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        """Stage 2, after verification: further rollouts for each anchor, int64 (A,). `bare[tree]` is that tree's m_i."""
