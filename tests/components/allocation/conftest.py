"""Anchors of random active prompts, as a verified first stage would leave them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings

from components.allocation.anchors import Anchors, Belief

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(scope="session")
def grow_anchors() -> Callable[..., Anchors]:
    """`grow_anchors(bare, rng)`: a root per tree, and the turns of its factual rollouts; some end in their first turn."""

    def grow(bare: np.ndarray, rng: np.random.Generator, turns: int = 4, concentration: float = np.inf) -> Anchors:
        rows = []
        for tree, rollouts in enumerate(bare.tolist()):
            outcomes = rng.choice([1.0, 0.0, np.nan], size=rollouts, p=[0.45, 0.45, 0.1])
            rows.append((tree, 0, int((outcomes == 1).sum()), int((outcomes == 0).sum())))
            for outcome in outcomes:
                for turn in range(1, int(rng.integers(1, turns + 1))):
                    rows.append((tree, turn, int(outcome == 1), int(outcome == 0)))
        tree_A, turn_A, successes_A, failures_A = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        size = len(tree_A)
        belief = Belief(rng.beta(0.5, 0.5, size), np.full(size, concentration))
        surprisal_A = np.where(rng.random(size) < 0.1, np.nan, rng.exponential(size=size))
        tokens_A = rng.integers(1, 50, size).astype(np.float64)
        return Anchors(np.arange(size), tree_A, turn_A, successes_A, failures_A, belief, surprisal_A, tokens_A)

    return grow
