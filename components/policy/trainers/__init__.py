"""Trainers, by the names used in params.yaml: a package each. The model libraries are imported when one is made."""

from components.policy.trainers.base import Trainer
from components.registry import Registry

TRAINERS: Registry[Trainer] = Registry("update.name", Trainer, __name__, "trace.trainers")
