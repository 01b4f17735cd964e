"""Predictors, by the names used in params.yaml: a module each. The model libraries are imported when one is made."""

from components.predictor.base import Predictor
from components.registry import Registry

PREDICTORS: Registry[Predictor] = Registry("predictor.name", Predictor, __name__, "trace.predictors")
