"""The one-process trainer: clipped token loss over the forest's terms, Adam, checkpoints in Hugging Face form.

What it leaves out on purpose: a KL penalty and an entropy bonus (App. E.4 uses none).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from components.policy.packing.batches import Batch, micro_batches, minibatches
from components.policy.trainers.base import Trainer, Update, UpdateParams
from components.policy.trainers.loss import Stats, batch_loss, check_finite, mean_of_steps
from components.policy.trainers.mismatch import first_mismatch, measure_mismatch
from components.policy.trainers.self_check import choose_packing
from components.policy.trainers.trainable import check_shapes, load_moments, load_trainable, save_moments, save_policy
from components.tree.advantages import terms_of
from components.tree.forest import Forest


class TorchTrainer(Trainer):
    """See the module's text. Implements `components.policy.engines.base.Trainer`.

    Args:
        settings: Advantage, loss and optimiser.
        temperature: The engine's sampling temperature: scored log-probabilities belong to the sampled distribution.
    """

    def __init__(self, settings: UpdateParams, temperature: float) -> None:
        self.settings, self.temperature = settings, temperature

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        """Raises `FloatingPointError` if a loss, a gradient or a weight is not finite: nothing is written then."""
        model = load_trainable(policy, self.settings, seed, fresh)
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        optimizer = torch.optim.Adam(trained.values(), lr=self.settings.learning_rate)
        moments = {} if fresh else load_moments(policy)
        check_shapes(moments, trained, policy)
        optimizer.state.update({trained[name]: state for name, state in moments.items() if name in trained})
        terms = terms_of(forest, self.settings.advantage)
        with self._precision(model):
            settings, packing = choose_packing(model, forest, terms, self.settings, self.temperature)
            proximal, mismatch = measure_mismatch(model, forest, terms, settings, self.temperature)
        rng = np.random.default_rng(seed)
        steps: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            for part in minibatches(forest, terms, settings.minibatches, rng):
                steps.append(self._step(model, optimizer, micro_batches(forest, part, settings, proximal)))
        save_policy(model, {n: p.detach() for n, p in trained.items()}, self.settings, policy, target, fresh)
        save_moments({name: optimizer.state[parameter] for name, parameter in trained.items()}, target)
        metrics = mean_of_steps(steps) | first_mismatch(steps) | mismatch | packing | terms.metrics()
        return Update(metrics, terms.advantage_N(len(forest)).tolist())

    def _step(self, model: Any, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> dict[str, float]:
        optimizer.zero_grad(set_to_none=True)
        stats = Stats()
        for batch in batches:
            with self._precision(model):
                loss, part = batch_loss(model, batch, self.settings, self.temperature)
            loss.backward()  # type: ignore[no-untyped-call]
            stats += part
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm))
        check_finite(stats.loss, norm)
        optimizer.step()
        return stats.metrics() | stats.mismatch() | {"grad_norm": norm}

    def _precision(self, model: Any) -> torch.autocast:
        return torch.autocast(model.device.type, torch.bfloat16, enabled=self.settings.dtype == "bf16")
