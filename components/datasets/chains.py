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
    numbers = sorted(hops)
    lengths_cdf = _cdf(np.array([hops[n] for n in numbers], dtype=float))
    words_cdf = _cdf(np.ones(len(words)) if weights is None else weights)
    while True:
        size = numbers[lengths_cdf.searchsorted(rng.random(), side="right")]
        yield [words[i] for i in words_cdf.searchsorted(rng.random(size), side="right").tolist()]


def _cdf(weights: np.ndarray) -> np.ndarray:
    """The cumulative distribution from which `Generator.choice` draws, which prepares it anew at every call."""
    cdf: np.ndarray = (weights / weights.sum()).cumsum()
    cdf /= cdf[-1]
    return cdf


def zipf(count: int, exponent: float) -> np.ndarray:
    """Weights 1/rank^exponent, (count,)."""
    return 1.0 / np.arange(1, count + 1) ** exponent
