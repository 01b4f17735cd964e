"""`mixture`: a model's belief at roots, updated by what the prompt's own earlier rollouts say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from components.allocation.anchors import Belief
from components.predictor.base import MakeSampler, Predictor, PredictorLayout, PredictorParams, Prefix
from components.predictor.models.beta import BetaParams, BetaPosterior
from components.predictor.models.policy_features import PolicyFeaturesParams, PolicyFeaturesPredictor

if TYPE_CHECKING:
    from components.policy.base import PolicyParams


class MixtureParams(PolicyFeaturesParams, BetaParams):
    """Who estimates the chance of success: small heads on the policy's hidden states, and each prompt's counts."""


class Mixture(Predictor):
    """`policy-features`, updated at roots by the prompt's own earlier rollouts."""

    name = "mixture"
    Params: ClassVar[type[PredictorParams]] = MixtureParams

    @classmethod
    def make(cls, params: MixtureParams, policy: Path, sampler: MakeSampler, seed: int) -> Predictor:
        from components.predictor.policy_features import PolicyFeatures

        return cls(PolicyFeatures(params, params.members, policy), BetaPosterior(params, policy))

    @classmethod
    def layout(cls, params: MixtureParams, policy: PolicyParams) -> PredictorLayout:
        return PolicyFeaturesPredictor.layout(params, policy)

    def __init__(self, model: Predictor, posterior: BetaPosterior) -> None:
        self.model, self.posterior = model, posterior

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        counts = np.array([self.posterior.of(p) if p.turn == 0 else (0.0, 0.0) for p in prefixes]).reshape(-1, 2)
        return self.model.predict(prefixes).after(counts[:, 0], counts[:, 1])

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        metrics = self.model.fit(prefixes, successes, trials, new, seed)
        return metrics | self.posterior.fit(prefixes, successes, trials, new, seed)

    def save(self, path: Path) -> None:
        self.model.save(path)
        self.posterior.save(path)

    def load(self, path: Path) -> None:
        self.model.load(path)
        self.posterior.load(path)
