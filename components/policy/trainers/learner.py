"""What takes the steps of an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from components.policy.packing.batches import Batch
from components.policy.trainers.loss import Stats

T = TypeVar("T")


class Learner:
    """How a trainer computes with a model, in one process or in several that take the same steps together.

    Attributes:
        model: What requires a gradient is trained.
        rank, ranks: This process among how many.
    """

    rank = 0
    ranks = 1

    def __init__(self, model: Any) -> None:
        self.model = model

    def within(self, function: Callable[[Any], T]) -> T:
        """Calls a function of the model as a forward pass."""
        return function(self.model)

    def of_first(self, value: T) -> T:
        """The first process's value of what each has computed."""
        return value

    def step(self, batches: list[Batch]) -> tuple[Stats, float]:
        """One optimiser step on this process's batches: the counts of all processes, and the gradient's norm."""
        raise NotImplementedError
