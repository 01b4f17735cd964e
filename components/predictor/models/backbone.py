"""`backbone`: a pretrained transformer, fine-tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from components.errors import UserError
from components.predictor.base import FitParams, MakeSampler, Predictor, PredictorParams


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
    def check(cls, params: Any) -> None:
        path = params.predictor.path
        if path is not None and not (Path(path) / "config.json").is_file():
            raise UserError(f"predictor.path={path!r}: no config.json there; give a Hugging Face checkpoint")
