"""Histories with a success rate that can be read off them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from components.environments.base import Prompt
from components.predictor.base import Prefix

Histories = Callable[..., tuple[list[Prefix], np.ndarray]]


@pytest.fixture(scope="session")
def histories() -> Histories:
    def draw(count: int, seed: int = 0) -> tuple[list[Prefix], np.ndarray]:
        """Random roots, and success rates that depend on their last token."""
        rng = np.random.default_rng(seed)
        ids = [[*rng.integers(6, 90, rng.integers(5, 12)).tolist(), int(rng.integers(10, 16))] for _ in range(count)]
        prefixes = [Prefix.root(Prompt(f"p{seed}-{i}", "q", "a"), tokens) for i, tokens in enumerate(ids)]
        return prefixes, np.array([0.9 if tokens[-1] % 2 else 0.1 for tokens in ids])

    return draw
