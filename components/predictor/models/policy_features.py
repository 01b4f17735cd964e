"""`policy-features`: what the policy's own hidden states, its hesitation and the prompt's words say of V."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from components.params.base import Width
from components.predictor.base import FitParams, MakeSampler, Predictor, PredictorLayout, PredictorParams

if TYPE_CHECKING:
    from components.policy.base import PolicyParams


class PolicyFeaturesParams(FitParams):
    """Who estimates the chance of success: small heads on the policy's hidden states."""

    members: Width = Field(4, description="Members of the ensemble of heads.")


class PolicyFeaturesPredictor(Predictor):
    """An ensemble of small heads on the policy's hidden states, its hesitation and the prompt's words."""

    name = "policy-features"
    Params: ClassVar[type[PredictorParams]] = PolicyFeaturesParams

    @classmethod
    def make(cls, params: PolicyFeaturesParams, policy: Path, sampler: MakeSampler, seed: int) -> Predictor:
        from components.predictor.policy_features import PolicyFeatures

        return PolicyFeatures(params, params.members, policy)

    @classmethod
    def layout(cls, params: PolicyFeaturesParams, policy: PolicyParams) -> PredictorLayout:
        return PredictorLayout(units_on_policy=params.members * params.hidden)
