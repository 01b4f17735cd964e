"""Prompts without a language model: latent success rates, and how they unfold turn by turn.

The chance of success V_t along a rollout is a martingale that ends in 0 or 1. Here it is a chain of Beta draws,

    V_{t+1} | V_t ~ Beta(c V_t, c (1 - V_t)),   c = T - t - 1,

so that every turn resolves the same share of the quadratic variation V_0 (1 - V_0) (Proposition 2), and the last turn
is the Bernoulli draw of the reward. V_0 has a symmetric U-shaped law Beta(a, a).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq


@dataclass(frozen=True)
class Population:
    """A law of prompts.

    Attributes:
        shape: a of the Beta(a, a) law of success rates; below 1 it is U-shaped.
        turns: T, turns of every rollout.
    """

    shape: float
    turns: int = 5

    @classmethod
    def with_mixed_share(cls, mixed: float, group_size: int = 8, turns: int = 5) -> Population:
        """The population on which flat groups hold both outcomes in a share `mixed` of prompts."""
        return cls(float(brentq(lambda a: _mixed_share(a, group_size) - mixed, 1e-4, 1e3)), turns)

    def rates(self, prompts: int, rng: np.random.Generator) -> np.ndarray:
        """Success rates V_0; float64 (P,)."""
        return rng.beta(self.shape, self.shape, prompts)

    def rollouts(self, rate_R: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """V_0, ..., V_{T-1} and the reward of rollouts that start at the given rates; float64 (R, T + 1)."""
        value_RT = np.empty((len(rate_R), self.turns + 1))
        value_RT[:, 0] = rate_R
        for turn in range(self.turns):
            value, c = value_RT[:, turn], self.turns - turn - 1
            if c == 0:
                value_RT[:, turn + 1] = rng.random(len(value)) < value
                continue
            inside = (value > 0) & (value < 1)
            value_RT[:, turn + 1] = value
            value_RT[inside, turn + 1] = rng.beta(
                np.maximum(c * value[inside], 1e-12), np.maximum(c * (1.0 - value[inside]), 1e-12)
            )
        return value_RT


def _mixed_share(shape: float, group_size: int) -> float:
    i = np.arange(group_size)
    return 1.0 - 2.0 * float(np.prod((shape + i) / (2 * shape + i)))
