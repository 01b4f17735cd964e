"""`beta`: what a prompt's own earlier rollouts say of it.

Each prompt keeps counts of its successes and failures. They fade by a factor at every refit, since the policy that
brought them has changed. Only rollouts from the root count, as many as there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from components.allocation.anchors import Belief
from components.errors import UserError
from components.params.base import Fraction
from components.predictor.base import Predictor, PredictorParams, Prefix
from components.storage import read_json, write_json

PRIOR = 2.0  # pseudo-rollouts at the rate that all prompts together show


class BetaParams(PredictorParams):
    """Who estimates the chance of success: counts of each prompt's own rollouts."""

    decay: Fraction = Field(0.8, description="Fading of a prompt's counts per refit.")


class BetaPosterior(Predictor):
    """Counts of the prompt's own earlier rollouts, with fading; it does not see turns.

    The Beta posterior of each prompt around the rate of all; a prefix is believed to be worth what its prompt is worth.
    """

    name = "beta"
    Params: ClassVar[type[PredictorParams]] = BetaParams

    def __init__(self, params: BetaParams, policy: Path) -> None:
        self.decay = params.decay
        self.counts: dict[str, tuple[float, float]] = {}

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        total = np.array(list(self.counts.values())).reshape(-1, 2).sum(0)
        prior = PRIOR * (total + 1.0) / (total.sum() + 2.0)
        alpha_beta = np.array([self.of(p) for p in prefixes]).reshape(-1, 2) + prior
        return Belief(alpha_beta[:, 0] / alpha_beta.sum(1), alpha_beta.sum(1))

    def of(self, prefix: Prefix) -> tuple[float, float]:
        """Faded successes and failures of the prefix's prompt."""
        return self.counts.get(prefix.prompt.prompt_id, (0.0, 0.0))

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        self.counts = {key: (a * self.decay, b * self.decay) for key, (a, b) in self.counts.items()}
        for prefix, k, n in zip(prefixes[:new], successes[:new].tolist(), trials[:new].tolist(), strict=True):
            if prefix.turn == 0:
                a, b = self.of(prefix)
                self.counts[prefix.prompt.prompt_id] = (a + k, b + n - k)
        return {"posterior_prompts": float(len(self.counts))}

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "posterior.json", self.counts)

    def load(self, path: Path) -> None:
        state = read_json(path / "posterior.json")
        try:
            self.counts = {str(key): (float(a), float(b)) for key, (a, b) in state.items()}
            if bad := [key for key, counts in self.counts.items() if not all(0 <= c < inf for c in counts)]:
                raise ValueError(f"the counts of prompt {bad[0]} are {self.counts[bad[0]]}")
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{path}: the predictor's state is missing or damaged ({error})") from error
