"""Success predictors."""

from __future__ import annotations

from pathlib import Path

from components.config import PredictorParams
from components.predictor.base import Predictor


def make_predictor(settings: PredictorParams, policy: Path) -> Predictor:
    """The predictor that `settings.name` registers; the model libraries are imported only here."""
    from components.predictor.policy_features import PolicyFeatures

    return {"policy-features": PolicyFeatures}[settings.name](settings, policy)


__all__ = ["Predictor", "make_predictor"]
