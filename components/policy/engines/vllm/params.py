"""What parameters say of vLLM."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.params.base import MAY_CHANGE, Float, Positive, PositiveInt
from components.policy.engines.base import EngineParams


class VllmParams(EngineParams):
    """Who samples: vLLM."""

    servers: Annotated[
        Annotated[int, Field(ge=0)] | Annotated[tuple[str, ...], Field(min_length=1, strict=False)], MAY_CHANGE
    ] = Field(1, description="URLs of running servers, or how many the run starts; 0 samples in the run's own process.")
    python: Annotated[str, MAY_CHANGE] = Field(
        ".venv-vllm/bin/python", description="Interpreter of the servers that the run starts."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Number format.")
    tensor_parallel: Annotated[PositiveInt, MAY_CHANGE] = Field(1, description="GPUs of one server.")
    gpu_memory: Annotated[Float, Field(gt=0, le=1), MAY_CHANGE] = Field(
        0.9, description="Share of a GPU's memory to use."
    )
    timeout: Annotated[Positive, MAY_CHANGE] = Field(
        1800.0, description="Seconds after which a request is given up and asked again."
    )
    patience: Annotated[Positive, MAY_CHANGE] = Field(
        120.0, description="Seconds to wait for a server where none answers."
    )
