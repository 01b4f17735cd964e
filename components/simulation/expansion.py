"""Stage 2 of a simulated iteration, for a chunk of trees: continuations, their outcomes, and the sums over trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.random import Generator
from scipy.special import gammaln

from components.allocation.anchors import Anchors, Belief
from components.allocation.arm import Arm
from components.allocation.budget import Budget, cost_of
from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor

MATCHED = 4  # leaves per prompt at which the effective ratio is compared


def expand(
    arm: Arm,
    budget: Budget,
    root_belief: Belief,
    tree_R: np.ndarray,
    value_RH: np.ndarray,
    population: Population,
    predictor: NoisyPredictor,
    rng: Generator,
) -> dict[str, float]:
    """Plans and samples the continuations of a chunk of trees, in the arm's rounds; sums over the trees by name.

    Args:
        arm: Where the budget goes.
        budget: The chunk's part.
        root_belief: What stage 1 believed of each tree's prompt.
        tree_R: Tree of each factual rollout, from 0 on, ascending.
        value_RH: V_0, ..., V_{T-1} and the reward of each factual rollout; float64 (R, T + 1).
        population: Of prompts and rollouts.
        predictor: What the arm knows of prefixes.
        rng: Decides everything drawn.
    """
    trees, turns = len(root_belief), population.turns

    def by_tree(weights: np.ndarray) -> np.ndarray:
        return np.bincount(anchors.tree_A, weights=weights, minlength=trees)

    factual_S = np.bincount(tree_R, minlength=trees)
    passed_S = np.bincount(tree_R, weights=value_RH[:, -1], minlength=trees).astype(np.int64)
    anchors, value_A = _anchors(root_belief, tree_R, value_RH, factual_S, passed_S, population, predictor, rng)
    counts_A, success_A, seen = np.zeros(len(anchors), dtype=np.int64), np.zeros(len(anchors), dtype=np.int64), anchors
    for part in budget.parts(arm.rounds):
        more_A = arm.plan_continuations(seen, factual_S, part, rng)
        won_A = rng.binomial(more_A, value_A)
        counts_A, success_A = counts_A + more_A, success_A + won_A
        seen = replace(seen, successes_A=seen.successes_A + won_A, failures_A=seen.failures_A + more_A - won_A)

    is_prefix_A = anchors.is_prefix_A
    leaves_S, all_passed_S = factual_S + by_tree(counts_A), passed_S + by_tree(success_A)
    mixed_S = (all_passed_S > 0) & (all_passed_S < leaves_S)
    flips_A = np.where(anchors.successes_A > 0, counts_A - success_A, success_A) * is_prefix_A
    root_leaves_S, root_passed_S = factual_S + counts_A[:trees], passed_S + success_A[:trees]  # roots come first
    root_mixed_S = (root_passed_S > 0) & (root_passed_S < root_leaves_S)
    units_S = factual_S + by_tree(cost_of(is_prefix_A) * counts_A)
    left_A = (turns - anchors.turn_A) / turns  # share of the turns below the anchor
    matchable_S = leaves_S >= MATCHED
    return {
        "trees": trees,
        "mixed": mixed_S.sum(),
        "leaves": leaves_S.sum(),
        "mixed_leaves": leaves_S[mixed_S].sum(),
        "matchable": matchable_S.sum(),
        "matched": _chance_of_contrast(all_passed_S[matchable_S], leaves_S[matchable_S], MATCHED).sum(),
        "continuations": counts_A[is_prefix_A].sum(),
        "flips": flips_A.sum(),
        "units": units_S.sum(),
        "wasted": units_S[~mixed_S].sum(),
        "turns": turns * (factual_S.sum() + left_A @ counts_A),
        # Proposition 3 at equal energy per turn: a mixed root group counts 1, a mixed prefix group the turns below it.
        "energy": root_mixed_S.sum() + left_A @ (flips_A > 0),
    }


def _anchors(
    root_belief: Belief,
    tree_R: np.ndarray,
    value_RH: np.ndarray,
    factual_S: np.ndarray,
    passed_S: np.ndarray,
    population: Population,
    predictor: NoisyPredictor,
    rng: Generator,
) -> tuple[Anchors, np.ndarray]:
    """Roots, then the prefixes rollout by rollout, and the true V at each."""
    trees, inner = len(factual_S), population.turns - 1
    turn_A = np.concatenate([np.zeros(trees, dtype=np.int64), np.tile(np.arange(1, inner + 1), len(tree_R))])
    passed_A = np.repeat(value_RH[:, -1].astype(np.int64), inner)  # of the prefixes: each has one rollout
    first = np.searchsorted(tree_R, np.arange(trees))
    value_A = np.concatenate([value_RH[first, 0], value_RH[:, 1:-1].ravel()])
    at_prefixes = predictor.predict(value_A[trees:], turn_A[trees:], population, rng)
    anchors = Anchors(
        node_A=np.arange(len(turn_A)),
        tree_A=np.concatenate([np.arange(trees), np.repeat(tree_R, inner)]),
        turn_A=turn_A,
        successes_A=np.concatenate([passed_S, passed_A]),
        failures_A=np.concatenate([factual_S - passed_S, 1 - passed_A]),
        belief=Belief(
            np.concatenate([root_belief.mean_A, at_prefixes.mean_A]),
            np.concatenate([root_belief.concentration_A, at_prefixes.concentration_A]),
        ),
        surprisal_A=4 * value_A * (1 - value_A) * rng.exponential(size=len(value_A)),  # hesitation is a noisy contrast
        suffix_tokens_A=(population.turns - turn_A).astype(np.float64),
    )
    return anchors, value_A


def _chance_of_contrast(passed: np.ndarray, leaves: np.ndarray, drawn: int) -> np.ndarray:
    """Chance that `drawn` of the leaves, without replacement, hold both outcomes."""

    def alike(kind: np.ndarray) -> np.ndarray:
        log = gammaln(kind + 1.0) - gammaln(np.maximum(kind - drawn, 0) + 1.0)
        log -= gammaln(leaves + 1.0) - gammaln(leaves - drawn + 1.0)
        all_alike: np.ndarray = np.where(kind >= drawn, np.exp(log), 0.0)
        return all_alike

    chance: np.ndarray = 1.0 - alike(passed) - alike(leaves - passed)
    return chance
