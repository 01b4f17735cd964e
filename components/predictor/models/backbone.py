"""`backbone`: a pretrained transformer, fine-tuned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from components.policy.base import check_checkpoint
from components.predictor.base import FitParams, MakeSampler, Predictor, PredictorLayout, PredictorParams

if TYPE_CHECKING:
    from components.policy.base import PolicyParams


class BackboneParams(FitParams):
    """Who estimates the chance of success: a pretrained transformer, fine-tuned."""

    path: str | None = Field(None, description="Checkpoint that the backbone starts from; null: the policy.")


class BackbonePredictor(Predictor):
    """A pretrained transformer, fine-tuned on the history's tokens; the policy itself by default."""

    name = "backbone"
    Params: ClassVar[type[PredictorParams]] = BackboneParams

    @classmethod
    def make(cls, params: BackboneParams, policy: Path, sampler: MakeSampler, seed: int) -> Predictor:
        from components.predictor.transformer import Backbone

        return Backbone(params, policy)

    @classmethod
    def layout(cls, params: BackboneParams, policy: PolicyParams) -> PredictorLayout:
        from components.planning.models import model_of

        key, path = ("predictor.path", params.path) if params.path else ("policy.path", policy.path)
        return PredictorLayout(own=model_of(path, policy, key), steps=params.steps, batch=params.batch_size)

    @classmethod
    def check(cls, params: Any) -> None:
        path = params.predictor.path
        if path is not None:
            check_checkpoint(path, "predictor.path")
