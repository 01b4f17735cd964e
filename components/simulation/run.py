"""One iteration of an arm on a simulated population: where the budget goes, and what contrast it brings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm, root_rounds
from components.allocation.budget import Budget
from components.simulation.expansion import expand
from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor

CHUNK = 50_000  # factual rollouts whose anchors are held at once, with their part of the budget: memory stays bounded


def simulate(
    arm: Arm, budget: Budget, pool: int, population: Population, predictor: NoisyPredictor, rng: Generator
) -> dict[str, float]:
    """Spends one iteration's budget.

    Args:
        arm: Where the budget goes.
        budget: What the iteration may spend.
        pool: Candidate prompts.
        population: The distribution of prompts and rollouts.
        predictor: What the arm knows of them.
        rng: Decides everything drawn.

    Returns:
        Flat names to numbers. Ratios: `effective_ratio` (Eq. 21), `effective_ratio_leaf` (Eq. 20),
        `effective_ratio_matched`, `flip_rate`, `wasted` (the share of the units spent that went into trees without
        contrast). Per unit of the budget: `active_prompts`, `mixed_prompts`, `leaves`, `units` spent, `turns` generated
        (the proxy of tokens, a factual rollout being 1), and `squared_gradient`, that of Proposition 3 at equal energy
        per turn.
    """
    rate_P = population.rates(pool, rng)
    belief = predictor.predict(rate_P, np.zeros(pool, dtype=np.int64), population, rng)
    prompt_R, value_RH = _factual_rollouts(arm, budget, rate_P, belief, population, rng)
    order = np.argsort(prompt_R, kind="stable")
    prompt_R, value_RH = prompt_R[order], value_RH[order]
    sums: Counter[str] = Counter()
    # Chunks end between two trees: cut at the last first rollout of a tree at or before each multiple of CHUNK.
    first = np.flatnonzero(np.diff(prompt_R, prepend=-1))
    cuts = np.unique(first[np.searchsorted(first, np.arange(0, len(prompt_R), CHUNK), side="right") - 1])
    for start, stop in zip(cuts, np.append(cuts, len(prompt_R))[1:], strict=True):
        prompts, tree_R = np.unique(prompt_R[start:stop], return_inverse=True)
        part = replace(budget, root_units=budget.root_units * int(stop - start) // len(prompt_R))
        sums.update(expand(arm, part, belief[prompts], tree_R, value_RH[start:stop], population, predictor, rng))  # type: ignore[arg-type]

    def ratio(part: str, whole: str) -> float:
        return float(sums[part] / sums[whole]) if sums[whole] else float("nan")

    def per_unit(name: str) -> float:
        return float(sums[name] / budget.units)

    return {
        "effective_ratio": ratio("mixed", "trees"),
        "effective_ratio_leaf": ratio("mixed_leaves", "leaves"),
        "effective_ratio_matched": ratio("matched", "matchable"),
        "flip_rate": ratio("flips", "continuations"),
        "wasted": ratio("wasted", "units"),
        "active_prompts": per_unit("trees"),
        "mixed_prompts": per_unit("mixed"),
        "leaves": per_unit("leaves"),
        "units": per_unit("units"),
        "turns": per_unit("turns") / population.turns,
        "squared_gradient": per_unit("energy"),
    }


def _factual_rollouts(
    arm: Arm, budget: Budget, rate_P: np.ndarray, belief: Belief, population: Population, rng: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Stage 1, with its refills: the prompt and the values of every factual rollout."""
    size = len(rate_P)
    seen = Seen.nothing(size)
    prompts, values = [np.zeros(0, dtype=np.int64)], [np.zeros((0, population.turns + 1))]

    def sample(counts_P: np.ndarray) -> Seen:
        nonlocal seen
        prompts.append(np.repeat(np.arange(size), counts_P))
        values.append(population.rollouts(rate_P[prompts[-1]], rng))
        won_P = np.bincount(prompts[-1], weights=values[-1][:, -1], minlength=size).astype(np.int64)
        seen = Seen(seen.sampled_P + counts_P, seen.successes_P + won_P, seen.failures_P + counts_P - won_P)
        return seen

    root_rounds(arm, belief, budget, rng, sample)
    return np.concatenate(prompts), np.concatenate(values)
