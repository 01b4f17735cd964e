"""One iteration of an arm on a simulated population: where the budget goes, and what contrast it brings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm, root_rounds
from components.allocation.budget import Budget
from components.simulation.expansion import Tally, expand
from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor

CHUNK = 50_000  # factual rollouts whose anchors are held at once, with their part of the budget: memory stays bounded


def simulate(
    arm: Arm,
    budget: Budget,
    pool: int,
    population: Population,
    predictor: NoisyPredictor,
    rng: np.random.Generator,
    matched_leaves: int = 4,
    rounds: int = 1,
) -> dict[str, float]:
    """Spends one iteration's budget.

    Args:
        arm: Where the budget goes.
        budget: What the iteration may spend.
        pool: Candidate prompts.
        population: The distribution of prompts and rollouts.
        predictor: What the arm knows of them.
        rng: Decides everything drawn.
        matched_leaves: Leaves per prompt at which the effective ratio is compared.
        rounds: Parts in which each tree's continuations are planned, each knowing the outcomes of those before: a
            prefix that was flipped gets no more (`allocation.rounds` of a run). Not for arms with one
            queue for all trees.

    Returns:
        Flat names to numbers. Ratios: `effective_ratio` (Eq. 21), `effective_ratio_leaf` (Eq. 20),
        `effective_ratio_matched`, `flip_rate`, `wasted` (the share of the units spent that went into trees without
        contrast). Per unit of the budget: `active_prompts`, `mixed_prompts`, `leaves`, `units` spent, `turns` generated
        (the proxy of tokens, a factual rollout being 1), and `squared_gradient`, that of Proposition 3 at equal energy per
        turn: a root group with contrast counts 1, a prefix group with contrast the share of the turns that lie below
        it.

    Raises:
        ValueError: if an arm with one queue for all is asked for several rounds.
    """
    if rounds > 1 and not arm.is_local:
        raise ValueError(f"rounds={rounds}: {arm.name} plans all continuations in one queue")
    rate_P = population.rates(pool, rng)
    belief = predictor.predict(rate_P, np.zeros(pool, dtype=np.int64), population, rng)
    prompt_R, value_RT = _factual_rollouts(arm, budget, rate_P, belief, population, rng)
    order = np.argsort(prompt_R, kind="stable")
    prompt_R, value_RT = prompt_R[order], value_RT[order]
    tally = Tally()
    first = np.flatnonzero(np.diff(prompt_R, prepend=-1))  # first rollout of every tree
    cuts = np.unique(first[np.searchsorted(first, np.arange(0, len(prompt_R), CHUNK), side="right") - 1])
    for start, stop in zip(cuts, np.append(cuts, len(prompt_R))[1:], strict=True):
        prompts, tree_R = np.unique(prompt_R[start:stop], return_inverse=True)
        part = replace(budget, root_units=budget.root_units * int(stop - start) // len(prompt_R))
        expand(
            arm,
            part,
            belief[prompts],
            tree_R,
            value_RT[start:stop],
            population,
            predictor,
            rng,
            tally,
            matched_leaves,
            rounds,
        )
    return {
        "effective_ratio": tally.ratio("mixed", "trees"),
        "effective_ratio_leaf": tally.ratio("mixed_leaves", "leaves"),
        "effective_ratio_matched": tally.ratio("matched", "matchable"),
        "flip_rate": tally.ratio("flips", "continuations"),
        "wasted": tally.ratio("wasted", "units"),
        "active_prompts": tally["trees"] / budget.units,
        "mixed_prompts": tally["mixed"] / budget.units,
        "leaves": tally["leaves"] / budget.units,
        "units": tally["units"] / budget.units,
        "turns": tally["turns"] / population.turns / budget.units,
        "squared_gradient": tally["energy"] / budget.units,
    }


def _factual_rollouts(
    arm: Arm,
    budget: Budget,
    rate_P: np.ndarray,
    belief: Belief,
    population: Population,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Stage 1, with its refills: the prompt and the values of every factual rollout."""
    size = len(rate_P)
    seen = Seen.nothing(size)
    prompts, values = [np.zeros(0, dtype=np.int64)], [np.zeros((0, population.turns + 1))]

    def sample(counts_P: np.ndarray) -> Seen:
        nonlocal seen
        prompt_R = np.repeat(np.arange(size), counts_P)
        value_RT = population.rollouts(rate_P[prompt_R], rng)
        prompts.append(prompt_R)
        values.append(value_RT)
        won_P = np.bincount(prompt_R, weights=value_RT[:, -1], minlength=size).astype(np.int64)
        seen = Seen(seen.sampled_P + counts_P, seen.successes_P + won_P, seen.failures_P + counts_P - won_P)
        return seen

    root_rounds(arm, belief, budget, rng, sample)
    return np.concatenate(prompts), np.concatenate(values)
