"""The clipped loss of one batch, and what is counted beside it. The same for all trainers."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from components.config import UpdateParams
from components.policy.batches import Batch


@dataclass(frozen=True)
class Stats:
    """Sums over terms; those of several batches add up.

    Attributes:
        loss: The loss, weights included.
        tokens: Terms, one per (token, leaf).
        ratio: Importance ratios ρ.
        kl: k3 estimates ρ - 1 - log ρ of the divergence from the policy that sampled (J. Schulman, "Approximating KL
            divergence", 2020).
        clipped: Terms whose ratio lies outside the clip range.
    """

    loss: float = 0.0
    tokens: float = 0.0
    ratio: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        return Stats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def metrics(self) -> dict[str, float]:
        """The loss, and means over the terms."""
        tokens = self.tokens or math.nan
        return {
            "loss": self.loss,
            "ratio_mean": self.ratio / tokens,
            "clip_fraction": self.clipped / tokens,
            "kl": self.kl / tokens,
        }


def clipped_loss(
    logprob: Tensor, old_logprob: Tensor, advantage: Tensor, weight: Tensor, low: float, high: float
) -> Tensor:
    """- Σ w min(ρ A, clip(ρ, 1 - low, 1 + high) A), ρ = exp(logprob - old_logprob); all (K,), K over (token, leaf)."""
    ratio = torch.exp(logprob - old_logprob)
    return -(weight * torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)).sum()


def batch_loss(model: Any, batch: Batch, settings: UpdateParams, temperature: float) -> tuple[Tensor, Stats]:
    """The batch's part of the loss, to call `backward` on, and its counts.

    Args:
        model: A causal language model in evaluation mode: the policy that sampled had no dropout.
        batch: On the model's device.
        settings: Clip range.
        temperature: The engine's: scored log-probabilities belong to the sampled distribution.
    """
    logprob = score(model, batch, temperature)
    low, high = settings.clip_low, settings.clip_high
    loss = clipped_loss(logprob, batch.old_logprob_K, batch.advantage_K, batch.weight_K, low, high)
    delta = (logprob - batch.old_logprob_K).detach()
    ratio = delta.exp()
    return loss, Stats(
        loss=float(loss.detach()),
        tokens=len(delta),
        ratio=float(ratio.sum()),
        kl=float((ratio - 1 - delta).sum()),
        clipped=float(((ratio < 1 - low) | (ratio > 1 + high)).sum()),
    )


def score(model: Any, batch: Batch, temperature: float) -> Tensor:
    """Log-probability of each term's token (K,). Logits are computed only where a token is predicted."""
    hidden = model.get_decoder()(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden.flatten(0, 1)[batch.predictor_Q]).float() / temperature
    logprob = torch.log_softmax(logits, dim=-1).gather(1, batch.target_Q[:, None])[:, 0]
    return logprob[batch.prediction_K]


def check_finite(loss: float, norm: float) -> None:
    """Raises `FloatingPointError` if a step's loss or gradient norm is not finite."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(f"the policy's loss ({loss}) or gradient norm ({norm}) is not finite")


def mean_of_steps(steps: list[dict[str, float]]) -> dict[str, float]:
    """Means of the optimiser steps' metrics, NaN where there was no step, and their number."""
    names = ("loss", "grad_norm", "ratio_mean", "clip_fraction", "kl")
    means = {name: float(np.mean([s[name] for s in steps])) if steps else math.nan for name in names}
    return means | {"optimizer_steps": float(len(steps))}
