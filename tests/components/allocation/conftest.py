"""Anchors of active prompts, given by hand or grown at random, as a verified first stage would leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import settings

from components.allocation.anchors import Anchors, Belief

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


def anchors_of(
    turn: Sequence[int],
    successes: Sequence[int],
    failures: Sequence[int],
    mean: Sequence[float],
    tree: Sequence[int] | None = None,
    concentration: float = np.inf,
    surprisal: Sequence[float] | None = None,
    tokens: Sequence[float] | None = None,
) -> Anchors:
    """Anchors of one tree, unless `tree` says otherwise; what is not given is not known."""
    size = len(turn)
    tree, unknown = [0] * size if tree is None else tree, [np.nan] * size
    ints = [np.array(column, dtype=np.int64) for column in (range(size), tree, turn, successes, failures)]
    belief = Belief(np.array(mean, dtype=np.float64), np.full(size, concentration))
    measured = [np.array(unknown if c is None else c, dtype=np.float64) for c in (surprisal, tokens)]
    return Anchors(*ints, belief, *measured)


@pytest.fixture(scope="session")
def grow_anchors() -> Callable[..., Anchors]:
    """`grow_anchors(factual_S, rng)`: a root per tree and the turns of its rollouts, some of which end in the first."""

    def grow(factual_S: np.ndarray, rng: np.random.Generator, turns: int = 4, concentration: float = np.inf) -> Anchors:
        rows = []
        for tree, rollouts in enumerate(factual_S.tolist()):
            outcomes = rng.choice([1.0, 0.0, np.nan], size=rollouts, p=[0.45, 0.45, 0.1])
            rows.append((0, int((outcomes == 1).sum()), int((outcomes == 0).sum()), tree))
            for outcome in outcomes:
                for turn in range(1, int(rng.integers(1, turns + 1))):
                    rows.append((turn, int(outcome == 1), int(outcome == 0), tree))
        turn, successes, failures, tree = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        mean = rng.beta(0.5, 0.5, len(tree))
        surprisal = np.where(rng.random(len(tree)) < 0.1, np.nan, rng.exponential(size=len(tree)))
        tokens = rng.integers(1, 50, len(tree))
        return anchors_of(turn, successes, failures, mean, tree, concentration, surprisal, tokens)

    return grow
