"""How good predictions were, on rollouts that the predictor had not been fitted on.

The predictions that steered an iteration are compared with what was then sampled below them. Factual rollouts are fresh
samples of V at their root and at every prefix that they visit. Extra root rollouts and continuations are not pooled
with them, since outcomes decided where they start; a continuation is a fresh sample at its own anchor, judged apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from components.tree.anchors import SUCCESS, from_stage_1, merged_prefixes
from components.tree.forest import Forest

DEPTHS = ((1, 1), (2, 2), (3, 3), (4, 7), (8, 10**9))  # turns, both ends included
BINS = 10

Outcomes = dict[int, list[float]]


def prediction_metrics(forest: Forest, earlier: Sequence[Forest] = ()) -> dict[str, float]:
    """Judges `v_hat` of a verified forest.

    Args:
        forest: Its anchors carry the predictions that were made before their rollouts.
        earlier: Forests of earlier iterations (a run gives those that it replays), for each prompt's running mean.

    Returns:
        For `root`, `prefix` (all visited ones) and each depth that occurs (``depth_1`` to ``depth_8_up``):

        - ``spearman_*``: rank correlation of prediction and mean outcome over anchors;
        - ``brier_*``: mean squared error per rollout; ``skill_*``: 1 - brier / that of the observed rate as constant
          prediction, so 0 is knowing nothing but the rate, and below 0 is worse;
        - ``ece_*``: expected calibration error over ten equal bins of the prediction.

        ``brier`` is over all of them. ``skill_running_mean``: at roots, the same against the mean of the prompt's own
        rollouts in `earlier` (the observed rate where it has none). ``spearman_continued``: prediction against
        continuations, over the anchors that got some; they were chosen for their prediction, so its range is narrow.
        NaN where a number is not defined.
    """
    factual, continued = _factual_outcomes(forest), _continued_outcomes(forest)
    groups = {
        "root": {a: rs for a, rs in factual.items() if forest.turn_N[a] == 0},
        "prefix": {a: rs for a, rs in factual.items() if forest.turn_N[a] > 0},
    }
    for low, high in DEPTHS:
        label = f"depth_{low}" if low == high else f"depth_{low}_{high}" if high < 10**9 else f"depth_{low}_up"
        group = {a: rs for a, rs in factual.items() if low <= forest.turn_N[a] <= high}
        if group:
            groups[label] = group
    metrics: dict[str, float] = {}
    for name, outcomes in groups.items():
        v_hat, reward = _pairs(forest, outcomes)
        brier, rate = _mean((v_hat - reward) ** 2), _mean(reward)
        metrics[f"spearman_{name}"] = _rank_correlation(forest, outcomes)
        metrics[f"brier_{name}"] = brier
        metrics[f"skill_{name}"] = _skill(brier, _mean((rate - reward) ** 2))
        metrics[f"ece_{name}"] = expected_calibration_error(v_hat, reward)
    metrics["brier"] = _mean(np.subtract(*_pairs(forest, factual)) ** 2)
    metrics["skill_running_mean"] = _skill(metrics["brier_root"], _running_mean_brier(forest, groups["root"], earlier))
    metrics["spearman_continued"] = _rank_correlation(forest, continued)
    return metrics


def judgements(forest: Forest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every scored factual rollout, once for each visited anchor that it passed: the judgements (J).

    Returns:
        turn_J: Turns before the anchor, 0 at roots; int64.
        v_hat_J: What was predicted there before anything was sampled below; float64.
        reward_J: Whether the rollout succeeded, 1 or 0; float64.
    """
    outcomes = {a: rs for a, rs in _factual_outcomes(forest).items() if forest.nodes[a].v_hat is not None}
    turns = [int(forest.turn_N[a]) for a, rs in outcomes.items() for _ in rs]
    return np.array(turns, dtype=np.int64), *_pairs(forest, outcomes)


def reliability(v_hat_J: np.ndarray, reward_J: np.ndarray) -> list[tuple[float, float, int]]:
    """Mean prediction, mean outcome and number of rollouts in each non-empty bin; ten equal bins of the prediction."""
    bin_J = np.minimum((v_hat_J * BINS).astype(np.int64), BINS - 1)
    return [
        (float(v_hat_J[bin_J == b].mean()), float(reward_J[bin_J == b].mean()), int((bin_J == b).sum()))
        for b in np.unique(bin_J)
    ]


def expected_calibration_error(v_hat: np.ndarray, reward: np.ndarray) -> float:
    """Mean over rollouts of |mean prediction - mean outcome| in the bin of the prediction; NaN without any."""
    if not len(v_hat):
        return float("nan")
    return sum(count * abs(predicted - seen) for predicted, seen, count in reliability(v_hat, reward)) / len(v_hat)


def _factual_outcomes(forest: Forest) -> Outcomes:
    """Successes (1) and failures (0) of the scored factual rollouts through each anchor; equal prefixes are one."""
    first_N = merged_prefixes(forest)
    outcomes: Outcomes = {}
    for leaf in filter(partial(from_stage_1, forest), forest.scored_L.tolist()):
        for row in forest.path(leaf)[:-1]:
            outcomes.setdefault(int(first_N[row]), []).append(float(forest.reward_N[leaf] > SUCCESS))
    return outcomes


def _continued_outcomes(forest: Forest) -> Outcomes:
    outcomes: Outcomes = {}
    for leaf in forest.scored_L[forest.is_counterfactual_N[forest.scored_L]].tolist():
        outcomes.setdefault(forest.nodes[leaf].anchor_id, []).append(float(forest.reward_N[leaf] > SUCCESS))
    return outcomes


def _pairs(forest: Forest, outcomes: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """Prediction and reward of every rollout at every anchor; both float64 (J,)."""
    known = [(v, r) for a, rs in outcomes.items() if (v := forest.nodes[a].v_hat) is not None for r in rs]
    v_hat, reward = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return v_hat, reward


def _rank_correlation(forest: Forest, outcomes: Outcomes) -> float:
    anchors = [a for a in outcomes if forest.nodes[a].v_hat is not None]
    predicted = np.array([forest.nodes[a].v_hat for a in anchors], dtype=np.float64)
    observed = np.array([np.mean(outcomes[a]) for a in anchors])
    if len(anchors) < 3 or np.ptp(predicted) == 0 or np.ptp(observed) == 0:
        return float("nan")
    from scipy.stats import spearmanr  # 2 s of import, which reports need not pay

    return float(spearmanr(predicted, observed).statistic)


def _running_mean_brier(forest: Forest, roots: Outcomes, earlier: Sequence[Forest]) -> float:
    """Squared error per rollout of the mean of the prompt's earlier factual rollouts."""
    seen: dict[str, list[float]] = {}
    for old in earlier:
        for leaf in filter(partial(from_stage_1, old), old.scored_L.tolist()):
            seen.setdefault(old.nodes[leaf].prompt_id, []).append(float(old.reward_N[leaf] > SUCCESS))
    rate = _mean(np.array([r for rs in roots.values() for r in rs]))
    expected = {anchor: float(np.mean(seen.get(forest.nodes[anchor].prompt_id, [rate]))) for anchor in roots}
    return _mean(np.array([(expected[anchor] - r) ** 2 for anchor, rs in roots.items() for r in rs]))


def _skill(brier: float, reference: float) -> float:
    return 1 - brier / reference if reference > 0 else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
