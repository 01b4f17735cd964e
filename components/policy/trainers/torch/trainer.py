"""The one-process trainer: clipped token loss over the forest's terms, Adam, checkpoints in Hugging Face form.

What it leaves out on purpose: a KL penalty and an entropy bonus (App. E.4 uses none).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from components.policy.packing.batches import Batch
from components.policy.trainers.base import Trainer, Update, UpdateParams
from components.policy.trainers.learner import Learner
from components.policy.trainers.loss import Stats, batch_loss
from components.policy.trainers.steps import take_steps
from components.policy.trainers.trainable import load_moments, load_trainable, save_moments, save_policy, trained_of
from components.tree.advantages import terms_of
from components.tree.forest import Forest

T = TypeVar("T")


class TorchTrainer(Trainer):
    """The update in the run's own process; see `Trainer` for the arguments."""

    def __init__(self, settings: UpdateParams, temperature: float) -> None:
        self.settings, self.temperature = settings, temperature

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        settings = self.settings
        model = load_trainable(policy, settings, seed, fresh)
        trained = trained_of(model)
        optimizer = torch.optim.Adam(trained.values(), lr=settings.learning_rate)
        moments = {} if fresh else load_moments(policy, trained)
        optimizer.state.update({trained[name]: state for name, state in moments.items()})
        terms = terms_of(forest, settings.advantage)
        learner = _Learner(model, optimizer, settings, self.temperature)
        metrics = take_steps(learner, forest, terms, settings, self.temperature, seed)
        save_policy(model, {n: p.detach() for n, p in trained.items()}, settings, policy, target, fresh)
        save_moments({name: optimizer.state[parameter] for name, parameter in trained.items()}, target)
        return Update(metrics | terms.metrics(), terms.advantage_N(len(forest)).tolist())


class _Learner(Learner):
    def __init__(
        self, model: Any, optimizer: torch.optim.Optimizer, settings: UpdateParams, temperature: float
    ) -> None:
        super().__init__(model)
        self.optimizer, self.settings, self.temperature = optimizer, settings, temperature

    def within(self, function: Callable[[Any], T]) -> T:
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.settings.dtype == "bf16"):
            return function(self.model)

    def step(self, batches: list[Batch]) -> tuple[Stats, float]:
        self.optimizer.zero_grad(set_to_none=True)
        stats = Stats()
        for batch in batches:
            loss, part = self.within(
                lambda model, batch=batch: batch_loss(model, batch, self.settings, self.temperature)  # type: ignore[misc]
            )
            loss.backward()  # type: ignore[no-untyped-call]
            stats += part
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        self.optimizer.step()
        return stats, norm
