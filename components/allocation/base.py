"""What an allocation rule is: counts of rollouts for anchors, under a budget in units.

A bare rollout from a root costs 1 unit, a continuation from a prefix half a unit, since it starts half-way on average
(App. E.5). Axis suffixes: `_P` prompts of the candidate pool, `_A` anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    Raises:
        ValueError: if the shapes differ, a mean lies outside [0, 1] or a concentration is not positive (NaN included).
    """

    mean_A: np.ndarray
    concentration_A: np.ndarray

    def __post_init__(self) -> None:
        if self.mean_A.shape != self.concentration_A.shape:
            raise ValueError(f"{self.mean_A.shape} means, but {self.concentration_A.shape} concentrations")
        for name, values, good in (
            ("mean", self.mean_A, (self.mean_A >= 0) & (self.mean_A <= 1)),
            ("concentration", self.concentration_A, self.concentration_A > 0),
        ):
            if not good.all():
                row = int(np.argmin(good))
                raise ValueError(f"row {row} of a belief has {name} {values[row]}")

    @classmethod
    def point(cls, mean_A: np.ndarray) -> Belief:
        """A belief that takes every mean for the truth."""
        mean_A = np.asarray(mean_A, dtype=np.float64)
        return cls(mean_A, np.full(mean_A.shape, np.inf))

    @classmethod
    def ignorant(cls, size: int) -> Belief:
        """The belief of one who knows nothing: uniform on [0, 1], Beta(1, 1)."""
        return cls(np.full(size, 0.5), np.full(size, 2.0))

    def after(self, successes_A: np.ndarray, failures_A: np.ndarray) -> Belief:
        """The belief after outcomes of rollouts through each anchor (Bayes' rule); a point belief stays as it is."""
        seen_A = (successes_A + failures_A) / self.concentration_A
        mean_A = (self.mean_A + successes_A / self.concentration_A) / (1.0 + seen_A)
        return Belief(np.clip(mean_A, 0.0, 1.0), self.concentration_A * (1.0 + seen_A))

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
        surprisal_A: Mean of -log p over the action tokens that were sampled right after the anchor, in nats: an
            estimate of the policy's entropy there. NaN where unknown; None where nobody measured it. float64.
        suffix_tokens_A: Mean number of tokens generated from the anchor to the end of its factual rollouts: what one
            more continuation can be expected to cost. NaN where unknown; None where nobody measured it. float64.
    """

    node_A: np.ndarray
    tree_A: np.ndarray
    turn_A: np.ndarray
    successes_A: np.ndarray
    failures_A: np.ndarray
    belief: Belief
    surprisal_A: np.ndarray | None = None
    suffix_tokens_A: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.node_A)

    @property
    def is_prefix_A(self) -> np.ndarray:
        """Whether the anchor is a prefix, not a root; bool."""
        return self.turn_A > 0

    def of_tree(self, rows: np.ndarray) -> Anchors:
        """The anchors of one tree, whose rows are given, as if there were no other tree."""
        surprisal, suffix = self.surprisal_A, self.suffix_tokens_A
        return Anchors(
            self.node_A[rows],
            np.zeros(len(rows), dtype=np.int64),
            self.turn_A[rows],
            self.successes_A[rows],
            self.failures_A[rows],
            self.belief[rows],
            None if surprisal is None else surprisal[rows],
            None if suffix is None else suffix[rows],
        )

    def with_belief(self, belief: Belief) -> Anchors:
        """The same anchors, with what a predictor says of them.

        Raises:
            ValueError: if the belief has another length.
        """
        if len(belief) != len(self):
            raise ValueError(f"{len(belief)} beliefs for {len(self)} anchors")
        return replace(self, belief=belief)


@dataclass(frozen=True)
class Seen:
    """What stage 1 has brought so far in this iteration, for each prompt of the pool.

    Attributes:
        sampled_P: Bare rollouts sampled, scored or not; int64.
        successes_P, failures_P: Scored ones, by outcome; int64.
    """

    sampled_P: np.ndarray
    successes_P: np.ndarray
    failures_P: np.ndarray

    @property
    def is_mixed_P(self) -> np.ndarray:
        """Whether the prompt's rollouts hold both outcomes; bool."""
        return (self.successes_P > 0) & (self.failures_P > 0)


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
    is_local: bool  # after `plan_roots` it asks for no refill and looks at one tree at a time: no tree waits for others

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        """Stage 1, before sampling: bare rollouts for each prompt of the pool, int64 (P,)."""

    def refill(self, pool: Belief, seen: Seen, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        """Stage 1 again, after each verification: further bare rollouts, int64 (P,); all zero when stage 1 is over."""

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        """Stage 2, after verification: further rollouts for each anchor, int64 (A,); `bare[tree]` is m_i."""


class OneRound:
    """What most arms share: stage 1 is a single round, and there is no stage 2."""

    is_local = True

    def refill(self, pool: Belief, seen: Seen, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(len(pool), dtype=np.int64)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        return np.zeros(len(anchors), dtype=np.int64)


def cost(anchors: Anchors, counts_A: np.ndarray) -> float:
    """Units that further rollouts at anchors cost: 1 at a root, a half at a prefix (App. E.5)."""
    return float(np.where(anchors.is_prefix_A, CONTINUATION_COST, ROOT_COST) @ counts_A)


def plan_by_tree(
    arm: Allocator, anchors: Anchors, bare: np.ndarray, shape: Shape, rng_S: Sequence[np.random.Generator]
) -> np.ndarray:
    """Stage 2 of a local arm, tree by tree: what a tree is granted does not depend on which others there are.

    Args:
        arm: Its `is_local` holds.
        anchors: Visited anchors.
        bare: m_i of each tree; int64 (S,).
        shape: The budget's shape.
        rng_S: A generator for each tree.

    Returns:
        Further rollouts for each anchor; int64 (A,).
    """
    counts_A = np.zeros(len(anchors), dtype=np.int64)
    order = np.argsort(anchors.tree_A, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(anchors.tree_A[order])) + 1):
        for tree in anchors.tree_A[rows[:1]].tolist():  # none where there are no anchors at all
            counts_A[rows] = arm.plan_continuations(anchors.of_tree(rows), bare[[tree]], shape, rng_S[tree])
    return counts_A
