"""`encoder`: a small transformer from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from components.params.base import Width
from components.predictor.base import FitParams, MakeSampler, Predictor, PredictorParams


class EncoderParams(FitParams):
    """Who estimates the chance of success: a transformer from scratch."""

    layers: Width = Field(2, description="Layers of the encoder.")


class EncoderPredictor(Predictor):
    """A small transformer from scratch on the history's tokens."""

    name = "encoder"
    Params: ClassVar[type[PredictorParams]] = EncoderParams

    @classmethod
    def make(cls, params: EncoderParams, policy: Path, sampler: MakeSampler, seed: int) -> Predictor:
        from components.predictor.transformer import Encoder

        return Encoder(params, policy)
