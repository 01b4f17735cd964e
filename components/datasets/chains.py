"""How the built-in generators draw what a question asks for: a chain of skill words, some of them rare."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def draw_chains(
    rng: np.random.Generator, words: list[str], hops: dict[int, float], weights: np.ndarray | None = None
) -> Iterator[list[str]]:
    """An endless stream of chains of words.

    Args:
        rng: Source of everything drawn.
        words: What chains are made of.
        hops: Weight of each length.
        weights: Weight of each word; uniform by default.
    """
    numbers = np.array(sorted(hops))
    lengths = np.array([hops[n] for n in numbers], dtype=float)
    weights = np.ones(len(words)) if weights is None else weights
    while True:
        size = rng.choice(numbers, p=lengths / lengths.sum())
        yield [words[i] for i in rng.choice(len(words), size=size, p=weights / weights.sum())]


def zipf(count: int, exponent: float) -> np.ndarray:
    """Weights 1/rank^exponent, (count,)."""
    return 1.0 / np.arange(1, count + 1) ** exponent
