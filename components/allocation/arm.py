"""What an arm is: the rule that says where the budget goes, as counts of rollouts for prompts and prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator

from components.allocation.anchors import Anchors, Belief, Seen
from components.allocation.budget import Budget
from components.params.base import AtLeast2, Count, PositiveInt, Section
from components.registry import Plugin

__all__ = ["AllocationParams", "Anchors", "Arm", "Belief", "Budget", "RoundsParams", "Seen"]  # what an arm is made of


class AllocationParams(Section):
    """Where the rollouts go."""

    arm: str = Field("", description="Registered arm.")
    pool: PositiveInt = Field(128, description="Candidate prompts per iteration.")
    root_units: AtLeast2 = Field(128, description="M: factual rollouts per iteration.")
    continuations: Count = Field(2, description="N: continuations per factual rollout.")
    group_size: AtLeast2 = Field(8, description="G: rollouts per prompt of the flat arms.")
    max_per_prompt: AtLeast2 | None = Field(None, description="Cap on the factual rollouts of one prompt.")

    @property
    def budget(self) -> Budget:
        return Budget(self.root_units, self.continuations, self.group_size, self.max_per_prompt)

    @model_validator(mode="after")
    def _check(self) -> AllocationParams:
        if self.budget.units < self.group_size:
            raise ValueError(
                f"the budget of {self.budget.units:g} units (root_units={self.root_units}) does not pay "
                f"one group of group_size={self.group_size} rollouts"
            )
        return self


class RoundsParams(AllocationParams):
    """Where the rollouts go; continuations may be planned in parts."""

    rounds: Annotated[int, Field(gt=0)] = Field(
        1, description="Parts in which continuations are planned, each knowing the outcomes of those before."
    )

    @model_validator(mode="after")
    def _check_rounds(self) -> RoundsParams:
        if self.rounds > max(1, self.continuations):
            raise ValueError(f"rounds={self.rounds} is more than continuations={self.continuations} can be parted into")
        return self


class Arm(Plugin):
    """One arm. Pure, vectorised, deterministic given the generator; never over the budget.

    Attributes:
        uses_predictor: Whether its plans depend on beliefs.
        branches: Whether it samples continuations from prefixes; the others buy whole rollouts alone.
        is_local: Stage 1 is over after one round, and stage 2 looks at one tree at a time: no tree waits for others.
        refills: Whether `plan_roots` is asked again once outcomes are known.
        samples: Whether it spends a budget at all.
        rounds: Parts in which its continuations are planned.
    """

    Params: ClassVar[type[AllocationParams]] = AllocationParams
    uses_predictor: ClassVar[bool] = False
    branches: ClassVar[bool] = False
    is_local: ClassVar[bool] = True
    refills: ClassVar[bool] = False
    samples: ClassVar[bool] = True

    def __init__(self, params: AllocationParams | None = None) -> None:
        self.params = self.Params() if params is None else params
        self.rounds = self.params.rounds if isinstance(self.params, RoundsParams) else 1

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        """Stage 1: further factual rollouts for each prompt of the pool, int64 (P,).

        Asked first when nothing has been sampled; an arm that refills is asked again after each verification, until all
        counts are zero.
        """
        raise NotImplementedError

    def plan_continuations(self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
        """Stage 2, after verification: further rollouts for each anchor, int64 (A,); `factual_S[tree]` is m_i."""
        return np.zeros(len(anchors), dtype=np.int64)


def root_rounds(
    arm: Arm,
    pool: Belief,
    budget: Budget,
    rng: Generator,
    sample: Callable[[np.ndarray], Seen],
    seen: Seen | None = None,
) -> int:
    """Stage 1: asks the arm for factual rollouts and has them sampled, until it asks for none.

    Args:
        arm: One that does not refill is asked once.
        pool: What is believed of the prompts.
        budget: Of the iteration.
        rng: Decides what the arm draws.
        sample: Samples and verifies so many rollouts of each prompt, int64 (P,); returns what all rounds have shown.
        seen: What earlier rounds have shown; None before the first.

    Returns:
        The number of rounds that sampled something.
    """
    seen, rounds = seen or Seen.nothing(len(pool)), 0
    while rounds == 0 or arm.refills:
        counts_P = arm.plan_roots(pool, seen, budget, rng)
        if not counts_P.any():
            break
        seen, rounds = sample(counts_P), rounds + 1
    return rounds


def plan_by_tree(
    arm: Arm, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng_S: Sequence[Generator]
) -> np.ndarray:
    """Stage 2 of a local arm, tree by tree: what a tree is granted does not depend on which others there are.

    Takes m_i and a generator for each tree; returns further rollouts for each anchor, int64 (A,).
    """
    counts_A = np.zeros(len(anchors), dtype=np.int64)
    order = np.argsort(anchors.tree_A, kind="stable")
    trees, first = np.unique(anchors.tree_A[order], return_index=True)
    for tree, rows in zip(trees.tolist(), np.split(order, first[1:]), strict=False):  # no trees split into one part
        counts_A[rows] = arm.plan_continuations(anchors.of_tree(rows), factual_S[[tree]], budget, rng_S[tree])
    return counts_A
