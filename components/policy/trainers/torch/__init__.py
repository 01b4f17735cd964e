"""`torch`: one process."""

from __future__ import annotations

from components.policy.trainers.base import Trainer, UpdateParams


class Torch(Trainer):
    """One process on the CPU: clipped token loss and Adam."""

    name = "torch"

    @classmethod
    def make(cls, params: UpdateParams, temperature: float, threads: int) -> Trainer:
        from components.policy.trainers.torch.trainer import TorchTrainer

        return TorchTrainer(params, temperature)
