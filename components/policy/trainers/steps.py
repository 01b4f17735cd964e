"""The steps of an update, for every trainer: which packing, how far from the engine, and which terms in which step."""

from __future__ import annotations

import math

import numpy as np

from components.policy.packing.batches import Batch, Proximal, micro_batches, minibatches, no_terms
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.learner import Learner
from components.policy.trainers.loss import Stats
from components.policy.trainers.mismatch import measure_mismatch
from components.policy.trainers.self_check import choose_packing
from components.tree.forest import Forest
from components.tree.terms import Terms


def take_steps(
    learner: Learner, forest: Forest, terms: Terms, settings: UpdateParams, temperature: float, seed: int
) -> dict[str, float]:
    """Takes all steps of an update, and returns its metrics.

    The mismatch is that of the first step, before any weight has changed, where `measure_mismatch` measures none.

    Raises:
        FloatingPointError: if a step's loss or gradient norm is not finite.
    """
    settings, packing = choose_packing(learner, forest, terms, settings, temperature)
    proximal, mismatch = learner.within(lambda model: measure_mismatch(model, forest, terms, settings, temperature))
    rng, steps = np.random.default_rng(seed), list[dict[str, float]]()
    for _ in range(settings.epochs):
        for part in minibatches(forest, terms, settings.minibatches, rng):
            stats, norm = learner.step(_own_batches(learner, forest, part, settings, proximal))
            if not (math.isfinite(stats.loss) and math.isfinite(norm)):
                raise FloatingPointError(f"the policy's loss ({stats.loss}) or gradient norm ({norm}) is not finite")
            mismatch = mismatch if steps or mismatch else stats.mismatch()
            steps.append(stats.metrics() | {"grad_norm": norm})
    names = [*Stats().metrics(), "grad_norm"]
    means = {name: float(np.mean([step[name] for step in steps])) if steps else math.nan for name in names}
    return means | {"optimizer_steps": float(len(steps))} | (mismatch or Stats().mismatch()) | packing


def _own_batches(
    learner: Learner, forest: Forest, terms: Terms, settings: UpdateParams, proximal: Proximal | None
) -> list[Batch]:
    """One process's batches of a step: smaller ones if there are too few, empty ones where others have one more."""
    batches = micro_batches(forest, terms, settings, proximal)
    if len(batches) < learner.ranks:
        tokens = sum(batch.input_ids.numel() for batch in batches)
        smaller = settings.model_copy(update={"micro_batch_tokens": 1 + tokens // learner.ranks})
        batches = micro_batches(forest, terms, smaller, proximal)
    mine = batches[learner.rank :: learner.ranks]
    return mine + [no_terms()] * (math.ceil(len(batches) / learner.ranks) - len(mine))
