"""What parameters say of training by DeepSpeed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from components.params.base import MAY_CHANGE, PositiveInt
from components.policy.trainers.base import UpdateParams


class DeepSpeedParams(UpdateParams):
    """Who learns: several processes; how many, and what they part among them, changes results by rounding alone."""

    processes: Annotated[PositiveInt, MAY_CHANGE] = Field(1, description="Processes, one per GPU.")
    zero_stage: Annotated[int, Field(ge=0, le=3), MAY_CHANGE] = Field(
        0, description="What they part among them: 1 moments, 2 gradients too, 3 weights too."
    )
    offload: Annotated[bool, MAY_CHANGE] = Field(
        False, description="Keep moments and fp32 weights in the host's memory."
    )

    @model_validator(mode="after")
    def _check(self) -> DeepSpeedParams:
        if self.offload and self.zero_stage == 0:
            raise ValueError("offload=True moves what ZeRO parts: it needs zero_stage 1, 2 or 3")
        return self
