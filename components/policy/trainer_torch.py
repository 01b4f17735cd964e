"""The one-process trainer: clipped token loss over the forest's terms, Adam, checkpoints in Hugging Face form.

What it leaves out on purpose: a KL penalty and an entropy bonus (App. E.4 uses none).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from components.config import UpdateParams
from components.errors import UserError
from components.policy.base import Update
from components.policy.batches import Batch, micro_batches, minibatches
from components.policy.checkpoint import load_model, load_tokenizer
from components.policy.loss import Stats, batch_loss, check_finite, mean_of_steps
from components.policy.mismatch import first_mismatch, look_back
from components.policy.self_check import settle_packing
from components.tree.advantages import credit
from components.tree.forest import Forest


class TorchTrainer:
    """See the module's text. Implements `components.policy.base.Trainer`.

    Args:
        settings: Advantage, loss and optimiser.
        temperature: The engine's sampling temperature: scored log-probabilities belong to the sampled distribution.
    """

    def __init__(self, settings: UpdateParams, temperature: float) -> None:
        self.settings, self.temperature = settings, temperature

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        """Raises `FloatingPointError` if a loss, a gradient or a weight is not finite: nothing is written then."""
        model = load_model(policy).eval()  # gradients without dropout: the sampling policy had none
        optimizer = torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)
        if not fresh:
            _load_optimizer(optimizer, model, policy)
        terms = credit(forest, self.settings.advantage)
        settings, packing = settle_packing(model, forest, terms, self.settings, self.temperature)
        proximal, mismatch = look_back(model, forest, terms, settings, self.temperature)
        rng = np.random.default_rng(seed)
        steps: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            for part in minibatches(forest, terms, settings.minibatches, rng):
                steps.append(self._step(model, optimizer, micro_batches(forest, part, settings, proximal)))
        if not all(torch.isfinite(weight).all() for weight in model.parameters()):
            raise FloatingPointError("the policy's weights are not finite after the last step")
        target.mkdir(parents=True)
        model.save_pretrained(target)
        load_tokenizer(policy).save_pretrained(target)
        _save_optimizer(optimizer, model, target)
        metrics = mean_of_steps(steps) | first_mismatch(steps) | mismatch | packing | terms.metrics()
        return Update(metrics, terms.advantage_N(len(forest)).tolist())

    def _step(self, model: Any, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> dict[str, float]:
        optimizer.zero_grad(set_to_none=True)
        stats = Stats()
        for batch in batches:
            loss, part = batch_loss(model, batch, self.settings, self.temperature)
            loss.backward()  # type: ignore[no-untyped-call]
            stats += part
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm))
        check_finite(stats.loss, norm)
        optimizer.step()
        return stats.metrics() | stats.mismatch() | {"grad_norm": norm}


def _save_optimizer(optimizer: torch.optim.Optimizer, model: Any, folder: Path) -> None:
    tensors = {
        f"{name}/{key}": value.clone()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    save_file(tensors, folder / "optimizer.safetensors")


def _load_optimizer(optimizer: torch.optim.Optimizer, model: Any, folder: Path) -> None:
    """Restores Adam's moments; a checkpoint without any (a pretrained or warmed-up one) starts fresh."""
    path = folder / "optimizer.safetensors"
    if not path.exists():
        return
    try:
        tensors = load_file(path)
    except Exception as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]})") from error
    for name, parameter in model.named_parameters():
        state = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        if not state:
            continue
        for key, value in state.items():
            if value.shape not in (parameter.shape, ()) or not torch.isfinite(value).all():
                raise UserError(f"{path}: {name}/{key} is not finite, or of another model (shape {list(value.shape)})")
        optimizer.state[parameter] = state
