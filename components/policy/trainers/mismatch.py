"""How far the engine's log-probabilities are from the trainer's at the same weights, and weights that correct it.

Engine and trainer compute one distribution by different kernels, perhaps in different precision. What remains is
measured in every update, at the weights that sampled. With a cap, the importance ratio of the loss starts from the
trainer's own log-probabilities there, and each token is weighted by min(trainer / engine, cap): truncated importance
sampling (F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from components.policy.packing.batches import Proximal, micro_batches
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import Stats, ratio_stats, term_logprobs
from components.tree.forest import Forest
from components.tree.terms import Terms

LEAST = -50.0  # of a weight's logarithm: a weight of 0 would take the token out of the batch


def measure_mismatch(
    model: Any, forest: Forest, terms: Terms, settings: UpdateParams, temperature: float
) -> tuple[Proximal | None, dict[str, float]]:
    """The policy that sampled as the trainer sees it, and its mismatch with the engine.

    Costs one forward pass over the trained trees, at the weights that sampled; nothing, and (None, {}), without
    `settings.importance_cap`.
    """
    if settings.importance_cap is None or not len(terms):
        return None, {}
    logprob_T, trained_T, stats = forest.logprob_T.copy(), np.zeros(len(forest.logprob_T), dtype=bool), Stats()
    with torch.no_grad():
        for batch in micro_batches(forest, terms, settings):
            batch = batch.to(model.device)
            logprob_K, token_K = term_logprobs(model, batch, temperature), batch.token_K.cpu().numpy()
            stats += ratio_stats(logprob_K, batch, settings)
            logprob_T[token_K], trained_T[token_K] = logprob_K.double().cpu().numpy(), True
    delta_T = logprob_T - forest.logprob_T
    weight_T = np.exp(np.clip(delta_T, LEAST, math.log(settings.importance_cap)))
    return Proximal(logprob_T, weight_T), stats.mismatch() | {
        "importance_weight": float(weight_T[trained_T].mean()),
        "importance_capped": float((delta_T[trained_T] > math.log(settings.importance_cap)).mean()),
    }
