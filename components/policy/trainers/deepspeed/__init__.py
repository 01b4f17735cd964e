"""`deepspeed`: several processes."""

from __future__ import annotations

from typing import ClassVar

from components.policy.trainers.base import Trainer, TrainerLayout, UpdateParams
from components.policy.trainers.deepspeed.params import DeepSpeedParams


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
