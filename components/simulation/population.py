"""Prompts without a language model: latent success rates, and how they unfold turn by turn.

The chance of success V_t along a rollout is a martingale that ends in 0 or 1. Here it is a chain of Beta draws,

    V_{t+1} | V_t ~ Beta(c V_t, c (1 - V_t)),   c = T - t - 1,

so that every turn resolves the same share of the quadratic variation V_0 (1 - V_0) (Proposition 2), and the last turn
is the Bernoulli draw of the reward. V_0 has a Beta distribution; with a concentration well below 2 it is U-shaped, and
most of its prompts are as good as dead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.optimize import brentq, minimize
from scipy.special import betaln, expit

from components.errors import UserError


@dataclass(frozen=True)
class Population:
    """A distribution of prompts.

    Attributes:
        concentration: alpha + beta of the Beta distribution of success rates.
        mean: Its mean, the policy's accuracy.
        turns: T, turns of every rollout.
    """

    concentration: float
    mean: float = 0.5
    turns: int = 5

    @classmethod
    def with_mixed_share(cls, mixed: float, group_size: int = 8, mean: float = 0.5, turns: int = 5) -> Population:
        """The population on which flat groups hold both outcomes in a share `mixed` of prompts.

        Raises:
            UserError: if no distribution with this mean has that share.
        """
        most = 1.0 - mean**group_size - (1.0 - mean) ** group_size
        if not 0.001 < mixed < 0.999 * most:
            raise UserError(
                f"mixed={mixed:g}: groups of {group_size} at a mean success rate of {mean:g} are mixed in a share "
                f"between 0 and {most:.3f}"
            )
        log_c = brentq(lambda x: _mixed_share(np.exp(x), mean, group_size) - mixed, np.log(1e-5), np.log(1e6))
        return cls(float(np.exp(log_c)), mean, turns)

    @classmethod
    def fitted(cls, successes_P: np.ndarray, rollouts_P: np.ndarray, turns: int = 5) -> Population:
        """The most likely population behind the outcomes of some of its prompts (a beta-binomial distribution).

        Raises:
            UserError: if no outcome or only one kind of outcome was seen, which fits no distribution.
        """
        if not 0 < successes_P.sum() < rollouts_P.sum():
            raise UserError(
                f"{successes_P.sum():.0f} of {rollouts_P.sum():.0f} rollouts succeeded: no distribution can be fitted"
            )

        def surprise(x: np.ndarray) -> float:
            mean, c = expit(x[0]), np.exp(x[1])
            a, b = mean * c, (1.0 - mean) * c
            return float((betaln(a, b) - betaln(a + successes_P, b + rollouts_P - successes_P)).sum())

        share = successes_P.sum() / rollouts_P.sum()
        start = [np.log(share / (1.0 - share)), 0.0]
        best = minimize(surprise, start, method="Nelder-Mead", bounds=[(-9.0, 9.0), (-7.0, 7.0)])
        return cls(float(np.exp(best.x[1])), float(expit(best.x[0])), turns)

    def mixed_share(self, group_size: int = 8) -> float:
        """Share of the prompts on which a flat group is expected to hold both outcomes."""
        return _mixed_share(self.concentration, self.mean, group_size)

    def at_turn(self, turn: int) -> tuple[float, float]:
        """alpha and beta of the Beta distribution with the mean and the contrast of V_turn, 1 - t/T of that of V_0."""
        part = (1.0 - turn / self.turns) * self.concentration / (1.0 + self.concentration)
        c = part / (1.0 - part)
        return self.mean * c, (1.0 - self.mean) * c

    def rates(self, prompts: int, rng: Generator) -> np.ndarray:
        """Success rates V_0; float64 (P,)."""
        return rng.beta(self.mean * self.concentration, (1.0 - self.mean) * self.concentration, prompts)

    def rollouts(self, rate_R: np.ndarray, rng: Generator) -> np.ndarray:
        """V_0, ..., V_{T-1} and the reward of rollouts that start at the given rates; float64 (R, T + 1)."""
        value_RH = np.empty((len(rate_R), self.turns + 1))
        value_RH[:, 0] = rate_R
        for turn in range(self.turns - 1):
            value, c = value_RH[:, turn], self.turns - turn - 1
            value_RH[:, turn + 1] = value
            inside = (value > 0) & (value < 1)
            alpha, beta = np.maximum(c * value[inside], 1e-12), np.maximum(c * (1.0 - value[inside]), 1e-12)
            value_RH[inside, turn + 1] = rng.beta(alpha, beta)
        value_RH[:, -1] = rng.random(len(rate_R)) < value_RH[:, -2]
        return value_RH


def _mixed_share(concentration: float, mean: float, group_size: int) -> float:
    i = np.arange(group_size)
    alike = [np.prod((v * concentration + i) / (concentration + i)) for v in (mean, 1.0 - mean)]
    return 1.0 - float(sum(alike))
