"""Arms beside each other: equal budgets, pairs by seed, intervals, and the cost of an accuracy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from components.tracking.compare import Curve, Estimate, flat, markdown, summarise
from components.tracking.figures import FIGURES


def curve(
    arm: str, seed: int, accuracy: list[float], units=(0, 100, 200), tokens=(0, 1000, 2000), setting="s", **history
) -> Curve:
    spent = (np.array(a, dtype=float) for a in (units, tokens, accuracy))
    history = {name.replace("__", "/"): np.array(values, dtype=float) for name, values in history.items()}
    return Curve(f"{arm}-{seed}", "task", setting, arm, seed, *spent, {"time/iteration": np.ones(2)} | history)


def row(rows: list[dict], arm: str) -> dict:
    return next(r for r in rows if r["arm"] == arm)


def test_interval_is_that_of_students_t():
    values = [0.1, 0.3, 0.2, 0.6]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    estimate = Estimate.of(values)
    assert (estimate.mean - estimate.margin, estimate.mean + estimate.margin) == pytest.approx((low, high))


def test_one_value_has_no_interval_and_missing_ones_do_not_count():
    assert math.isnan(Estimate.of([0.4]).margin)
    assert Estimate.of([0.4, math.nan]).n == 1
    assert Estimate.of([]).n == 0


def test_accuracy_area_and_cost_of_a_curve():
    c = curve("trace", 0, [0.0, 0.4, 0.6])
    assert c.at("units", 50) == pytest.approx(0.2)
    assert c.area("units", 200) == pytest.approx((0.2 + 0.5) / 2)
    assert c.cost("units", 0.5) == pytest.approx(150)
    assert c.cost("tokens", 0.0) == 0.0
    assert math.isnan(c.cost("units", 0.7))


def test_runs_are_compared_where_the_shortest_ends():
    long = curve("trace", 0, [0.0, 0.4, 0.9], tokens=(0, 3000, 6000))
    rows = summarise([curve("grpo", 0, [0.0, 0.3], units=(0, 100), tokens=(0, 1500)), long], "grpo")
    assert row(rows, "trace")["units"] == 100
    assert row(rows, "trace")["accuracy_at_units"].mean == pytest.approx(0.4)
    assert row(rows, "trace")["accuracy_at_tokens"].mean == pytest.approx(0.2)  # half of the way to 3000 tokens


def test_gains_are_paired_by_seed():
    """Seeds differ much more than arms: unpaired, the gain would drown."""
    runs = [curve("grpo", s, [0, s / 10, s / 10]) for s in range(5)]
    runs += [curve("trace", s, [0, s / 10, s / 10 + 0.05]) for s in (4, 2, 0, 1, 3)]
    gain = row(summarise(runs, "grpo"), "trace")["accuracy_at_units_gain"]
    assert gain.mean == pytest.approx(0.05)
    assert gain.margin == pytest.approx(0.0, abs=1e-12)
    assert row(summarise(runs, "grpo"), "grpo")["accuracy_at_units_gain"].n == 0


def test_seeds_without_a_partner_leave_the_gain_and_stay_in_the_mean():
    runs = [curve("grpo", 0, [0, 0, 0.2]), curve("trace", 0, [0, 0, 0.3]), curve("trace", 1, [0, 0, 0.9])]
    trace = row(summarise(runs, "grpo"), "trace")
    assert (trace["accuracy_at_units_gain"].n, trace["accuracy_at_units"].n) == (1, 2)


def test_what_never_reaches_the_accuracy_is_said_to():
    runs = [curve("grpo", s, [0, 0.2, 0.4]) for s in (0, 1)]
    runs += [curve("trace", 0, [0, 0.4, 0.5]), curve("trace", 1, [0, 0.1, 0.2]), curve("pcl", 0, [0, 0, 0])]
    rows = summarise(runs, "grpo")
    cost = row(rows, "trace")["cost_units"]
    assert (cost.mean, cost.n) == (100.0, 1)
    text = markdown(rows)
    assert "100 (1 of 2)" in text
    assert "never" in text
    assert "accuracy to reach: 0.400" in text


def test_settings_are_kept_apart():
    runs = [curve("grpo", 0, [0, 0, 0.1], setting="easy"), curve("grpo", 0, [0, 0, 0.5], setting="hard")]
    rows = summarise(runs, "grpo")
    assert [(r["setting"], r["accuracy_at_units"].mean) for r in rows] == [("easy", 0.1), ("hard", 0.5)]


def test_plain_rows_have_low_and_high_or_nothing():
    runs = [curve("grpo", s, [0, 0, 0.1 * s]) for s in (1, 2)]
    plain = flat(summarise(runs, "grpo")[0])
    assert plain["accuracy_at_units_low"] < plain["accuracy_at_units"] < plain["accuracy_at_units_high"]
    assert plain["accuracy_at_units_gain"] is None
    assert plain["accuracy_at_units_gain_low"] is None


def lines(figure, panel: int) -> list[np.ndarray]:
    return [np.array(line.get_ydata(), dtype=float) for line in figure.axes[panel].lines if len(line.get_ydata())]


def test_figure_has_a_panel_for_each_setting_and_axis_and_a_line_for_each_arm():
    runs = [curve(arm, s, [0, 0.2, 0.4], setting=e) for arm in ("grpo", "trace") for s in (0, 1) for e in "ab"]
    drawn = FIGURES["accuracy"](runs)
    assert len(drawn.axes) == 4
    assert [t.get_text() for t in drawn.legends[0].get_texts()] == ["grpo", "trace"]
    assert len(lines(drawn, 0)) == 2 * (2 + 1)


def test_no_two_arms_look_alike_in_a_figure():
    drawn = FIGURES["accuracy"]([curve(f"arm-{k}", 0, [0, 0.2, 0.4]) for k in range(16)])
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn.legends[0].get_lines()}
    assert len(looks) == 16


def test_figure_of_a_metric_shows_seeds_and_their_mean_without_what_is_missing():
    runs = [
        curve("trace", 0, [0, 0, 0], predictor__spearman_root=[math.nan, 0.4, 0.6]),
        curve("trace", 1, [0, 0, 0], predictor__spearman_root=[math.nan, math.nan, 0.2]),
        curve("grpo", 0, [0, 0, 0], predictor__spearman_root=[math.nan] * 3),
    ]
    one, other, mean = lines(FIGURES["predictor"](runs), 0)
    np.testing.assert_allclose(mean, [math.nan, 0.4, 0.4])
    np.testing.assert_allclose([one[2], other[2]], [0.6, 0.2])


def test_figure_of_the_budget_counts_rollouts_by_the_depth_they_start_from():
    runs = [replace(curve("trace", s, [0, 0, 0]), depths=np.array(d)) for s, d in enumerate(([2.0, 1.0], [4.0, 0, 1]))]
    (shares,) = lines(FIGURES["budget"](runs), 0)
    np.testing.assert_allclose(shares, [6 / 8, 1 / 8, 1 / 8])


def test_figure_of_times_has_shares_that_add_up():
    run = curve(
        "trace", 0, [0, 0, 0], time__generate=[0.2, 0.2], time__update_policy=[0.3, 0.5], time__evaluate=[0, 0.4]
    )
    bars = [bar.get_width() for container in FIGURES["time"]([run]).axes[0].containers for bar in container]
    np.testing.assert_allclose(bars, [0.4 / 1.6, 0, 0, 0.8 / 1.6, 0.4 / 1.6])
