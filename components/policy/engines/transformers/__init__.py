"""`transformers`: batched sampling in the run's own process."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from components.params.base import Positive
from components.policy.engines.base import Engine, EngineLayout, EngineParams


class TransformersParams(EngineParams):
    """Who samples: a model in the run's own process."""

    cache_gb: Positive = Field(
        1.0, description="GB for keys and values sampled together; as much again for prefixes kept."
    )
    keep_prefixes: bool = Field(
        False, description="Keep prefixes across stages; a continued run is then not bit-identical."
    )


class Transformers(Engine):
    """In the run's own process, on the CPU; the run's seed decides every bit."""

    name = "transformers"
    Params: ClassVar[type[EngineParams]] = TransformersParams

    @classmethod
    def make(cls, params: TransformersParams) -> Engine:
        from components.policy.engines.transformers.engine import TransformersEngine

        return TransformersEngine(params)

    @classmethod
    def layout(cls, params: TransformersParams) -> EngineLayout:
        return EngineLayout(cache_bytes=1e9 * params.cache_gb)
