"""How good predictions were, on anchors that the predictor had not been fitted on."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from components.tree.forest import Forest
from components.tree.schema import Origin


def prediction_metrics(forest: Forest, seen_v_hat: np.ndarray) -> dict[str, float]:
    """Compares the predictions that steered an iteration with what was then sampled below them.

    A prefix is expanded *because* of its factual outcome, so that outcome is no fresh sample of V there: roots are
    judged by their factual leaves, prefixes by their continuations alone.

    Args:
        forest: Verified forest.
        seen_v_hat: Prediction per node, NaN where none was made; (N,).

    Returns:
        ``spearman_root`` and ``spearman_prefix`` (rank correlation of prediction and mean outcome over anchors; NaN
        where it is not defined), ``brier`` (mean squared error per leaf at roots, factual leaves) and ``brier_base``
        (the same for a constant prediction at the observed rate); the last two are absent without a scored rollout.
    """
    factual, continued = _outcomes(forest, Origin.FACTUAL), _outcomes(forest, Origin.COUNTERFACTUAL)
    metrics = {
        "spearman_root": _rank_correlation(factual, seen_v_hat),
        "spearman_prefix": _rank_correlation(continued, seen_v_hat),
    }
    pairs = [(seen_v_hat[anchor], r) for anchor, rs in factual.items() for r in rs if np.isfinite(seen_v_hat[anchor])]
    if pairs:
        v_hat, outcome = np.array(pairs).T
        metrics["brier"] = float(np.mean((v_hat - outcome) ** 2))
        metrics["brier_base"] = float(np.var(outcome))
    return metrics


def _outcomes(forest: Forest, origin: Origin) -> dict[int, list[float]]:
    """Rewards of the scored leaves of one origin, by the anchor that paid for them."""
    outcomes: dict[int, list[float]] = {}
    for leaf in forest.scored_L:
        node = forest.nodes[leaf]
        if node.origin == origin:
            outcomes.setdefault(node.anchor_id, []).append(float(forest.reward_N[leaf]))
    return outcomes


def _rank_correlation(outcomes: dict[int, list[float]], v_hat_N: np.ndarray) -> float:
    anchors = [a for a in outcomes if np.isfinite(v_hat_N[a])]
    predicted = np.array([v_hat_N[a] for a in anchors])
    observed = np.array([np.mean(outcomes[a]) for a in anchors])
    if len(anchors) < 3 or np.ptp(predicted) == 0 or np.ptp(observed) == 0:
        return float("nan")
    return float(spearmanr(predicted, observed).statistic)
