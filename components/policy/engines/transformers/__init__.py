"""`transformers`: batched sampling in the run's own process."""

from __future__ import annotations

from typing import ClassVar

from components.policy.engines.base import Engine, EngineLayout, EngineParams
from components.policy.engines.transformers.params import TransformersParams


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
