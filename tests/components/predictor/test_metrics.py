"""Predictions are judged on fresh samples, before the fit."""

from __future__ import annotations

import numpy as np
import pytest

from components.predictor.metrics import prediction_metrics
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason


def grow(roots: dict[float, list[float]], continuations: dict[float, list[float]] | None = None) -> Forest:
    """One tree per prediction, with factual rewards; continuations hang below a first turn with its own prediction."""
    nodes: list[Node] = []

    def leaf(tree: int, parent: int, anchor: int, origin: Origin, reward: float) -> None:
        end = {"stop_reason": StopReason.ANSWERED, "reward": reward}
        nodes.append(Node(tree, f"p{tree}", len(nodes), parent, 9, origin, anchor_id=anchor, **end))

    for tree, (v_hat, rewards) in enumerate(roots.items()):
        root = len(nodes)
        nodes.append(Node(tree, f"p{tree}", root, -1, 0, Origin.ROOT, v_hat=v_hat))
        for reward in rewards:
            leaf(tree, root, root, Origin.FACTUAL, reward)
    for tree, (v_hat, rewards) in enumerate((continuations or {}).items()):
        root = next(n.node_id for n in nodes if n.tree_id == tree)
        prefix = len(nodes)
        nodes.append(Node(tree, f"p{tree}", prefix, root, 1, Origin.FACTUAL, anchor_id=root, v_hat=v_hat))
        leaf(tree, prefix, root, Origin.FACTUAL, 1.0)
        for reward in rewards:
            leaf(tree, prefix, prefix, Origin.COUNTERFACTUAL, reward)
    return Forest(nodes)


def judge(forest: Forest) -> dict[str, float]:
    return prediction_metrics(forest, np.array([np.nan if n.v_hat is None else n.v_hat for n in forest.nodes]))


def test_right_order_is_1_and_reversed_is_minus_1():
    outcomes = [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert judge(grow(dict(zip((0.1, 0.5, 0.9), outcomes, strict=True))))["spearman_root"] == pytest.approx(1.0)
    assert judge(grow(dict(zip((0.9, 0.5, 0.1), outcomes, strict=True))))["spearman_root"] == pytest.approx(-1.0)


def test_brier_is_per_leaf_and_beside_the_base_rate():
    metrics = judge(grow({0.25: [0.0, 0.0, 1.0, 0.0], 0.75: [1.0, 1.0]}))
    assert metrics["brier"] == pytest.approx((3 * 0.0625 + 0.5625 + 2 * 0.0625) / 6)
    assert metrics["brier_base"] == pytest.approx(0.25)


def test_prefixes_are_judged_by_continuations_alone():
    """The factual leaf was a reason for the choice, so it is no fresh sample."""
    roots = {0.4: [1.0], 0.5: [1.0], 0.6: [1.0]}
    forest = grow(roots, {0.2: [0.0, 0.0], 0.5: [0.0, 1.0], 0.8: [1.0, 1.0]})
    assert judge(forest)["spearman_prefix"] == pytest.approx(1.0)


def test_constant_predictions_have_no_rank_correlation():
    metrics = judge(grow({0.5: [0.0, 1.0]}))
    assert np.isnan(metrics["spearman_root"])
    assert np.isnan(metrics["spearman_prefix"])
