"""What parameters say of sampling in the run's own process."""

from __future__ import annotations

from pydantic import Field

from components.params.base import Positive
from components.policy.engines.base import EngineParams


class TransformersParams(EngineParams):
    """Who samples: a model in the run's own process."""

    cache_gb: Positive = Field(
        1.0, description="GB for keys and values sampled together; as much again for prefixes kept."
    )
    keep_prefixes: bool = Field(
        False, description="Keep prefixes across stages; a continued run is then not bit-identical."
    )
