"""The clipped loss of one batch, and what is counted beside it. The same for all trainers."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from components.policy.packing.batches import Batch
from components.policy.packing.tree_attention import tree_for
from components.policy.trainers.base import UpdateParams

LOGITS = 2**28  # logits that are held at once (1 GiB); beyond, they are computed again in the backward pass


@dataclass(frozen=True)
class Stats:
    """Sums over terms; those of several batches, and of several processes, are added by `+`.

    Attributes:
        loss: The loss, weights included.
        tokens: Terms, one per (token, leaf).
        ratio: Importance ratios ρ.
        kl: k3 estimates ρ - 1 - log ρ of the divergence from the policy that sampled (J. Schulman, "Approximating KL
            divergence", 2020).
        clipped: Terms whose ratio lies outside the clip range.
        paths: Paths, each with all its terms.
        path_ratio: Products of the ratios along each path.
        log_ratio_max: Largest |log ρ|; not a sum.
    """

    loss: float = 0.0
    tokens: float = 0.0
    ratio: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    paths: float = 0.0
    path_ratio: float = 0.0
    log_ratio_max: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        sums = Stats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))
        return replace(sums, log_ratio_max=max(self.log_ratio_max, other.log_ratio_max))

    def metrics(self) -> dict[str, float]:
        """The loss, and means over the terms."""
        tokens = self.tokens or math.nan
        return {
            "loss": self.loss,
            "ratio_mean": self.ratio / tokens,
            "clip_fraction": self.clipped / tokens,
            "kl": self.kl / tokens,
        }

    def mismatch(self) -> dict[str, float]:
        """The same as a comparison of engine and trainer, where both had the same weights.

        The ratio of a path grows with its length while those of its tokens stay near 1; both are reported.
        """
        tokens, paths = self.tokens or math.nan, self.paths or math.nan
        return {
            "mismatch_kl": self.kl / tokens,
            "mismatch_max": self.log_ratio_max if self.tokens else math.nan,
            "mismatch_ratio": self.ratio / tokens,
            "mismatch_path_ratio": self.path_ratio / paths,
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
    logprob = term_logprobs(model, batch, temperature)
    loss = clipped_loss(
        logprob, batch.old_logprob_K, batch.advantage_K, batch.weight_K, settings.clip_low, settings.clip_high
    )
    return loss, replace(ratio_stats(logprob.detach(), batch, settings), loss=float(loss.detach()))


def ratio_stats(logprob_K: Tensor, batch: Batch, settings: UpdateParams) -> Stats:
    """Counts of the ratios of log-probabilities to the batch's old ones; the loss is left at 0."""
    delta = logprob_K - batch.old_logprob_K
    ratio = delta.exp()
    paths = torch.unique_consecutive(batch.path_K, return_inverse=True)[1]
    along = delta.new_zeros(int(paths[-1]) + 1 if len(paths) else 0, dtype=torch.float64)
    return Stats(
        tokens=len(delta),
        ratio=float(ratio.sum()),
        kl=float((ratio - 1 - delta).sum()),
        clipped=float(((ratio < 1 - settings.clip_low) | (ratio > 1 + settings.clip_high)).sum()),
        paths=len(along),
        path_ratio=float(along.index_add(0, paths, delta.double()).exp().sum()),
        log_ratio_max=float(delta.abs().max()) if len(delta) else 0.0,
    )


def term_logprobs(model: Any, batch: Batch, temperature: float) -> Tensor:
    """Log-probability of each term's token (K,). Logits are computed only where a token is predicted."""
    packed: dict[str, Any] = {}
    if batch.end_T is not None:
        packed = {"position_ids": batch.position_ids, "tree": tree_for(model, batch.end_T)}
    hidden = model.get_decoder()(input_ids=batch.input_ids, use_cache=False, **packed).last_hidden_state
    hidden, head = hidden.flatten(0, 1)[batch.predictor_Q], model.get_output_embeddings()

    def logprob(hidden: Tensor, target: Tensor) -> Tensor:
        return torch.log_softmax(head(hidden).float() / temperature, dim=-1).gather(1, target[:, None])[:, 0]

    chunk = max(1, LOGITS // model.config.vocab_size)
    if len(hidden) <= chunk:
        return logprob(hidden, batch.target_Q)[batch.prediction_K]
    parts = zip(torch.split(hidden, chunk), torch.split(batch.target_Q, chunk), strict=True)
    return torch.cat([checkpoint(logprob, *part, use_reentrant=False) for part in parts])[batch.prediction_K]
