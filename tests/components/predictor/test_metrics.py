"""Predictions are judged on fresh samples, before the fit."""

from __future__ import annotations

import numpy as np
import pytest

from components.predictor.metrics import expected_calibration_error, judgements, prediction_metrics, reliability
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason


class Planter:
    """Grows trees with predictions at their anchors."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def root(self, v_hat: float, rewards: list[float], planned: int | None = None, prompt: str | None = None) -> int:
        """A tree with rollouts of one turn; `planned` of them (default: all) were planned in stage 1."""
        tree = len({n.tree_id for n in self.nodes})
        row = len(self.nodes)
        allocated = len(rewards) if planned is None else planned
        self.nodes.append(Node(tree, prompt or f"p{tree}", row, -1, 0, Origin.ROOT, v_hat=v_hat, allocated=allocated))
        for sibling, reward in enumerate(rewards):
            self.leaf(row, row, Origin.FACTUAL, reward, sibling)
        return row

    def prefix(self, root: int, v_hat: float, reward: float, continued: list[float] | None = None) -> None:
        """A factual rollout through a prefix, with continuations from it."""
        at, parent = len(self.nodes), self.nodes[root]
        self.nodes.append(
            Node(parent.tree_id, parent.prompt_id, at, root, 1, Origin.FACTUAL, anchor_id=root, v_hat=v_hat, sibling=0)
        )
        parent.allocated += 1
        self.leaf(at, root, Origin.FACTUAL, reward, 0)
        for sibling, other in enumerate(continued or []):
            self.leaf(at, at, Origin.COUNTERFACTUAL, other, sibling)

    def leaf(self, parent: int, anchor: int, origin: Origin, reward: float, sibling: int) -> None:
        node = self.nodes[parent]
        self.nodes.append(
            Node(node.tree_id, node.prompt_id, len(self.nodes), parent, node.turn + 1, origin, anchor_id=anchor,
                 sibling=sibling, stop_reason=StopReason.ANSWERED, reward=reward)
        )  # fmt: skip

    @property
    def forest(self) -> Forest:
        return Forest(self.nodes)


def roots(**rewards: list[float]) -> Forest:
    planter = Planter()
    for v_hat, outcome in rewards.items():
        planter.root(float(v_hat.removeprefix("v").replace("_", ".")), outcome)
    return planter.forest


def test_right_order_is_1_and_reversed_is_minus_1():
    good = prediction_metrics(roots(v0_1=[0.0, 0.0], v0_5=[0.0, 1.0], v0_9=[1.0, 1.0]))
    bad = prediction_metrics(roots(v0_9=[0.0, 0.0], v0_5=[0.0, 1.0], v0_1=[1.0, 1.0]))
    assert good["spearman_root"] == pytest.approx(1.0)
    assert bad["spearman_root"] == pytest.approx(-1.0)


def test_brier_is_per_rollout_and_skill_is_against_the_observed_rate():
    metrics = prediction_metrics(roots(v0_25=[0.0, 0.0, 1.0, 0.0], v0_75=[1.0, 1.0]))
    assert metrics["brier_root"] == pytest.approx((3 * 0.0625 + 0.5625 + 2 * 0.0625) / 6)
    assert metrics["skill_root"] == pytest.approx(1 - metrics["brier_root"] / 0.25)


def test_every_visited_prefix_is_judged_by_its_factual_rollouts():
    planter = Planter()
    for v_hat, reward in ((0.1, 0.0), (0.5, 0.0), (0.6, 1.0), (0.9, 1.0)):
        planter.prefix(planter.root(0.5, []), v_hat, reward, continued=[1.0 - reward])
    metrics = prediction_metrics(planter.forest)
    assert metrics["spearman_prefix"] == metrics["spearman_depth_1"] > 0.8
    assert metrics["spearman_continued"] < -0.8
    assert metrics["brier_prefix"] == pytest.approx((0.01 + 0.25 + 0.16 + 0.01) / 4)


def test_continuations_and_extra_roots_do_not_count_at_roots():
    """They were added because of outcomes: here the factual rollout failed, and all that came later succeeded."""
    planter = Planter()
    planter.prefix(planter.root(0.0, []), 0.0, 0.0, continued=[1.0, 1.0])
    planter.root(0.0, [0.0, 1.0, 1.0], planned=1)
    assert prediction_metrics(planter.forest)["brier_root"] == 0.0


def test_skill_against_the_prompts_running_mean():
    """A constant has no skill against a past that is no better; against a perfect past, skill is not defined."""
    now, past = Planter(), Planter()
    for name, reward in (("a", 0.0), ("b", 1.0)):
        now.root(0.5, [reward, reward], prompt=name)
        past.root(0.5, [reward], prompt=name)
    assert prediction_metrics(now.forest)["skill_running_mean"] == pytest.approx(0.0)
    half_right = Planter()
    half_right.root(0.5, [0.0, 1.0], prompt="a")
    metrics = prediction_metrics(now.forest, [half_right.forest])
    assert metrics["skill_running_mean"] == pytest.approx(0.0)
    perfect = prediction_metrics(now.forest, [past.forest])
    assert np.isnan(perfect["skill_running_mean"])  # nothing is left to improve on


def test_calibration_error_of_the_right_rate_is_0_and_of_overconfidence_is_not():
    reward = np.array([0.0, 0.0, 0.0, 1.0])
    assert expected_calibration_error(np.full(4, 0.25), reward) == pytest.approx(0.0)
    assert expected_calibration_error(np.full(4, 1.0), reward) == pytest.approx(0.75)
    assert np.isnan(expected_calibration_error(np.array([]), np.array([])))


def test_reliability_curve_has_a_point_per_bin():
    _, v_hat, reward = judgements(roots(v0_25=[0.0, 0.0, 1.0, 0.0], v0_75=[1.0, 1.0]))
    assert reliability(v_hat, reward) == [(0.25, 0.25, 4), (0.75, 1.0, 2)]


def test_constant_predictions_have_no_rank_correlation():
    metrics = prediction_metrics(roots(v0_5=[0.0, 1.0]))
    assert np.isnan(metrics["spearman_root"])
    assert np.isnan(metrics["spearman_prefix"])


def test_forest_without_a_scored_rollout_has_no_numbers():
    metrics = prediction_metrics(Forest([Node(0, "p", 0, -1, 0, Origin.ROOT, v_hat=0.5)]))
    assert all(np.isnan(value) for value in metrics.values())
