"""Engines, by the names used in params.yaml: a package each. The model libraries are imported when one is made."""

from components.policy.engines.base import Engine
from components.registry import Registry

ENGINES: Registry[Engine] = Registry("engine.name", Engine, __name__, "trace.engines")
