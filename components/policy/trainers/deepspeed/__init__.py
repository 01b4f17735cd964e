"""`deepspeed`: several processes."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from components.params.base import MAY_CHANGE, PositiveInt
from components.policy.trainers.base import Trainer, TrainerLayout, UpdateParams


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


class DeepSpeed(Trainer):
    """The same step on several processes, by DeepSpeed ZeRO 0 to 3."""

    name = "deepspeed"
    Params: ClassVar[type[UpdateParams]] = DeepSpeedParams
    needs = {"deepspeed": "deepspeed"}

    @classmethod
    def make(cls, params: DeepSpeedParams, temperature: float, threads: int) -> Trainer:
        from components.policy.trainers.deepspeed.trainer import DeepSpeedTrainer

        return DeepSpeedTrainer(params, temperature, threads)

    @classmethod
    def layout(cls, params: DeepSpeedParams) -> TrainerLayout:
        return TrainerLayout(
            on_gpu=True, processes=params.processes, zero_stage=params.zero_stage, offload=params.offload,
            keys={
                "gpus": "update.processes",
                "weights": "update.zero_stage (3 parts the weights among processes) or update.processes",
                "gathered weights": "update.processes",
                "gradients": "update.zero_stage (2 parts the gradients among processes) or update.processes",
                "optimiser": "update.zero_stage, update.processes or update.offload",
            },
        )  # fmt: skip
