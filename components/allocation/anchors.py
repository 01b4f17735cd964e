"""What is known when rollouts are allocated: beliefs about V, visited anchors, and what stage 1 has brought so far."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np


@dataclass(frozen=True)
class Belief:
    """What is believed of the chance of success V at each anchor: a Beta distribution, or a point.

    Attributes:
        mean_A: Mean of V, in [0, 1]; float64.
        concentration_A: alpha + beta; `inf` where V is taken to equal its mean, as in the paper. float64.

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
        # Alpha grows by the successes and beta by the failures. Divided by the concentration, so that inf is no case.
        seen_A = (successes_A + failures_A) / self.concentration_A
        mean_A = (self.mean_A + successes_A / self.concentration_A) / (1.0 + seen_A)
        return Belief(np.clip(mean_A, 0.0, 1.0), self.concentration_A * (1.0 + seen_A))

    def __len__(self) -> int:
        return len(self.mean_A)

    def __getitem__(self, rows: np.ndarray | slice) -> Belief:
        return Belief(self.mean_A[rows], self.concentration_A[rows])


@dataclass(frozen=True)
class Anchors:
    """Visited anchors of one iteration's active prompts, after their factual rollouts are verified (Eq. 14).

    Every active prompt has one root anchor; the others are visited, non-terminal prefixes. Equal prefixes are one.

    Attributes:
        node_A: Row in the forest, the first where several nodes are one anchor; int64.
        tree_A: Tree; int64.
        turn_A: Depth, 0 at roots; int64.
        successes_A, failures_A: Scored factual leaves below, by outcome; int64.
        belief: Predicted chance of success.
        surprisal_A: Mean of -log p over the action tokens sampled right after the anchor, in nats: an estimate of the
            policy's entropy there. NaN where unknown. float64.
        suffix_tokens_A: Mean number of tokens sampled from the anchor to the end of its factual rollouts: the expected
            cost of a continuation. NaN where unknown. float64.
    """

    node_A: np.ndarray
    tree_A: np.ndarray
    turn_A: np.ndarray
    successes_A: np.ndarray
    failures_A: np.ndarray
    belief: Belief
    surprisal_A: np.ndarray
    suffix_tokens_A: np.ndarray

    def __len__(self) -> int:
        return len(self.node_A)

    @property
    def is_prefix_A(self) -> np.ndarray:
        """Whether the anchor is a prefix, not a root; bool."""
        return self.turn_A > 0

    def of_tree(self, rows: np.ndarray) -> Anchors:
        """The anchors of one tree, whose rows are given, as if there were no other tree."""
        cut = {field.name: getattr(self, field.name)[rows] for field in fields(self)}
        return Anchors(**{**cut, "tree_A": np.zeros(len(rows), dtype=np.int64)})

    def with_belief(self, belief: Belief) -> Anchors:
        """The same anchors with another belief; a `ValueError` if it has another length."""
        if len(belief) != len(self):
            raise ValueError(f"{len(belief)} beliefs for {len(self)} anchors")
        return replace(self, belief=belief)


@dataclass(frozen=True)
class Seen:
    """What stage 1 has brought so far in this iteration, for each prompt of the pool.

    Attributes:
        sampled_P: Factual rollouts sampled, scored or not; int64.
        successes_P, failures_P: Scored ones, by outcome; int64.
    """

    sampled_P: np.ndarray
    successes_P: np.ndarray
    failures_P: np.ndarray

    @classmethod
    def nothing(cls, prompts: int) -> Seen:
        """Before anything was sampled."""
        return cls(*(np.zeros(prompts, dtype=np.int64) for _ in range(3)))

    @property
    def is_mixed_P(self) -> np.ndarray:
        """Whether the prompt's rollouts hold both outcomes; bool."""
        return (self.successes_P > 0) & (self.failures_P > 0)
