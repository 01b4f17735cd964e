"""Stage 2 of a simulated iteration, for a chunk of trees: continuations, their outcomes, and the sums over trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import gammaln

from components.allocation.anchors import Anchors, Belief
from components.allocation.arm import Arm
from components.allocation.budget import CONTINUATION_COST, ROOT_COST, Budget
from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor


class Tally:
    """Sums by name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, **numbers: float) -> None:
        for name, number in numbers.items():
            self._sums[name] = self[name] + float(number)

    def __getitem__(self, name: str) -> float:
        return self._sums.get(name, 0.0)

    def ratio(self, part: str, whole: str) -> float:
        return self[part] / self[whole] if self[whole] else float("nan")


def expand(
    arm: Arm,
    budget: Budget,
    root_belief: Belief,
    tree_R: np.ndarray,
    value_RT: np.ndarray,
    population: Population,
    predictor: NoisyPredictor,
    rng: np.random.Generator,
    tally: Tally,
    matched_leaves: int,
    rounds: int = 1,
) -> None:
    """Plans and samples the continuations of a chunk of trees, and adds what came of them to `tally`.

    Args:
        root_belief: What stage 1 believed of each tree's prompt.
        tree_R: Tree of each factual rollout, from 0 on.
        value_RT: V_0, ..., V_{T-1} and the reward of each factual rollout; float64 (R, T + 1).
        rounds: Parts in which the continuations are planned, each knowing the outcomes of those before.
    """
    trees, turns = len(root_belief), population.turns
    factual_S = np.bincount(tree_R, minlength=trees)
    passed_S = np.bincount(tree_R, weights=value_RT[:, -1], minlength=trees).astype(np.int64)
    anchors, value_A = _anchors(root_belief, tree_R, value_RT, factual_S, passed_S, population, predictor, rng)
    counts_A, success_A, seen = np.zeros(len(anchors), dtype=np.int64), np.zeros(len(anchors), dtype=np.int64), anchors
    for size in np.diff(np.arange(rounds + 1) * budget.continuations // rounds).tolist():
        more_A = arm.plan_continuations(seen, factual_S, replace(budget, continuations=size), rng)
        won_A = rng.binomial(more_A, value_A)
        counts_A, success_A = counts_A + more_A, success_A + won_A
        seen = replace(seen, successes_A=seen.successes_A + won_A, failures_A=seen.failures_A + more_A - won_A)

    tree_A, is_prefix_A = anchors.tree_A, anchors.is_prefix_A
    leaves_S = factual_S + np.bincount(tree_A, weights=counts_A, minlength=trees).astype(np.int64)
    all_passed_S = passed_S + np.bincount(tree_A, weights=success_A, minlength=trees).astype(np.int64)
    mixed_S = (all_passed_S > 0) & (all_passed_S < leaves_S)
    flips_A = np.where(anchors.successes_A > 0, counts_A - success_A, success_A) * is_prefix_A
    root_leaves_S, root_passed_S = factual_S + counts_A[:trees], passed_S + success_A[:trees]  # roots come first
    root_mixed_S = (root_passed_S > 0) & (root_passed_S < root_leaves_S)
    price_A = np.where(is_prefix_A, CONTINUATION_COST, ROOT_COST)
    units_S = factual_S + np.bincount(tree_A, weights=price_A * counts_A, minlength=trees)
    left_A = (turns - anchors.turn_A) / turns  # share of the turns below the anchor
    matchable_S = leaves_S >= matched_leaves
    tally.add(
        trees=trees,
        mixed=mixed_S.sum(),
        leaves=leaves_S.sum(),
        mixed_leaves=leaves_S[mixed_S].sum(),
        matchable=matchable_S.sum(),
        matched=_chance_of_contrast(all_passed_S[matchable_S], leaves_S[matchable_S], matched_leaves).sum(),
        continuations=counts_A[is_prefix_A].sum(),
        flips=flips_A.sum(),
        units=units_S.sum(),
        wasted=units_S[~mixed_S].sum(),
        turns=turns * (factual_S.sum() + left_A @ counts_A),
        energy=root_mixed_S.sum() + left_A @ (flips_A > 0),
    )


def _anchors(
    root_belief: Belief,
    tree_R: np.ndarray,
    value_RT: np.ndarray,
    factual_S: np.ndarray,
    passed_S: np.ndarray,
    population: Population,
    predictor: NoisyPredictor,
    rng: np.random.Generator,
) -> tuple[Anchors, np.ndarray]:
    """Roots, then the prefixes rollout by rollout, and the true V at each."""
    trees, inner = len(factual_S), population.turns - 1
    turn_A = np.concatenate([np.zeros(trees, dtype=np.int64), np.tile(np.arange(1, inner + 1), len(tree_R))])
    outcome_A = np.repeat(value_RT[:, -1] > 0, inner)
    first = np.searchsorted(tree_R, np.arange(trees))
    value_A = np.concatenate([value_RT[first, 0], value_RT[:, 1:-1].ravel()])
    prefix_belief = predictor.predict(value_A[trees:], turn_A[trees:], population, rng)
    belief = Belief(
        np.concatenate([root_belief.mean_A, prefix_belief.mean_A]),
        np.concatenate([root_belief.concentration_A, prefix_belief.concentration_A]),
    )
    anchors = Anchors(
        node_A=np.arange(len(turn_A)),
        tree_A=np.concatenate([np.arange(trees), np.repeat(tree_R, inner)]),
        turn_A=turn_A,
        successes_A=np.concatenate([passed_S, outcome_A.astype(np.int64)]),
        failures_A=np.concatenate([factual_S - passed_S, (~outcome_A).astype(np.int64)]),
        belief=belief,
        surprisal_A=4 * value_A * (1 - value_A) * rng.exponential(size=len(value_A)),  # hesitation is a noisy contrast
        suffix_tokens_A=(population.turns - turn_A).astype(np.float64),
    )
    return anchors, value_A


def _chance_of_contrast(passed: np.ndarray, leaves: np.ndarray, drawn: int) -> np.ndarray:
    """Chance that `drawn` of the leaves, without replacement, hold both outcomes."""

    def alike(kind: np.ndarray) -> np.ndarray:
        kind = kind.astype(np.float64)
        log = gammaln(kind + 1) - gammaln(np.maximum(kind - drawn, 0) + 1)
        log -= gammaln(leaves + 1.0) - gammaln(leaves - drawn + 1.0)
        all_alike: np.ndarray = np.where(kind >= drawn, np.exp(log), 0.0)
        return all_alike

    chance: np.ndarray = 1.0 - alike(passed) - alike(leaves - passed)
    return chance
