"""A predictor of set quality: it sees logit V through Gaussian noise.

Its sight ends at `floor`: rates nearer to 0 or 1 look alike, as they do to whoever learnt from a few hundred rollouts
of each kind, so that noise makes some hopeless prompts look fair. `plug-in` takes what it sees for V. `posterior` knows
the distribution of V and the size of its error, and answers with the Beta distribution that has the posterior's mean
and variance: the difference between the two is what calibration is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from scipy.special import expit, logit

from components.allocation.anchors import Belief
from components.simulation.population import Population

_EDGE = 40.0  # logits beyond are certain


@dataclass(frozen=True)
class NoisyPredictor:
    """See the module's text.

    Attributes:
        noise: Standard deviation of the error in logits; 0 sees V itself, inf nothing.
        belief: What is made of it.
        floor: Rates nearer to 0 or 1 than this are seen as this, before the noise.
    """

    noise: float
    belief: Literal["plug-in", "posterior"] = "plug-in"
    floor: float = 0.002

    def predict(self, value_A: np.ndarray, turn_A: np.ndarray, population: Population, rng: Generator) -> Belief:
        """Beliefs about V at anchors of the given turns."""
        if self.noise == 0:
            return Belief.point(value_A)
        if np.isinf(self.noise):
            seen = np.zeros(len(value_A))
        else:
            seen = self._sight(logit(value_A)) + self.noise * rng.standard_normal(len(value_A))
        if self.belief == "plug-in":
            return Belief.point(expit(seen))
        mean_A, concentration_A = np.empty(len(seen)), np.empty(len(seen))
        for turn in np.unique(turn_A):
            rows = turn_A == turn
            mean_A[rows], concentration_A[rows] = self._posterior(seen[rows], *population.at_turn(int(turn)))
        return Belief(mean_A, concentration_A)

    def _sight(self, logit_A: np.ndarray) -> np.ndarray:
        edge = float(logit(1.0 - self.floor))
        seen: np.ndarray = np.clip(logit_A, -edge, edge)
        return seen

    def _posterior(self, seen: np.ndarray, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and concentration of the Beta distribution with the posterior's first two moments.

        Bayes' rule by quadrature, for sightings on a grid; in between, interpolation.
        """
        x = np.linspace(-_EDGE, _EDGE, 1601)  # logit V, whose density is smooth where that of V has poles
        log_prior = -alpha * np.logaddexp(0, -x) - beta * np.logaddexp(0, x)
        # Beyond the edges the density falls exponentially; its mass there goes to the points at the edges.
        tail = -_EDGE * np.array([alpha, beta]) - np.log(np.array([alpha, beta]) * (x[1] - x[0]))
        log_prior[[0, -1]] = np.logaddexp(log_prior[[0, -1]] - np.log(2), tail)
        grid = np.linspace(-_EDGE, _EDGE, 801)
        weight = np.tile(log_prior, (len(grid), 1))
        if np.isfinite(self.noise):
            weight -= 0.5 * ((grid[:, None] - self._sight(x)) / self.noise) ** 2
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        v = expit(x)
        mean = weight @ v
        contrast = np.maximum(weight @ (v * expit(-x)), 1e-300)  # E[v (1-v)] = mean (1-mean) c / (c+1)
        ratio = np.clip(contrast / np.maximum(mean * (1 - mean), 1e-300), 1e-9, 1 - 1e-9)
        at = np.clip(seen, -_EDGE, _EDGE)
        return np.interp(at, grid, np.clip(mean, 0.0, 1.0)), np.exp(np.interp(at, grid, np.log(ratio / (1 - ratio))))
