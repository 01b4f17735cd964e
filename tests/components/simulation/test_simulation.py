"""Simulated populations, predictors and iterations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from components.allocation import ARMS, Shape
from components.simulation import NoisyPredictor, Population, simulate, sweep

POPULATION = Population.with_mixed_share(0.25)
POOL = 8000
SHAPE = Shape(POOL, 2, 8)  # a pool four times the batch of flat groups


def run(arm: str, noise: float = 2.0, belief: str = "plug-in", shape: Shape = SHAPE) -> dict[str, float]:
    return simulate(ARMS[arm], shape, POOL, POPULATION, NoisyPredictor(noise, belief), np.random.default_rng(0))


def test_population_has_the_mixed_share_it_was_made_for():
    rng = np.random.default_rng(0)
    successes = rng.binomial(8, POPULATION.rates(200_000, rng))
    assert ((successes > 0) & (successes < 8)).mean() == pytest.approx(0.25, abs=0.005)


def test_values_are_a_martingale_and_every_turn_resolves_the_same_share():
    value_RT = Population(1.0, turns=4).rollouts(np.full(200_000, 0.3), np.random.default_rng(0))
    assert value_RT.mean(axis=0) == pytest.approx(np.full(5, 0.3), abs=0.005)
    assert (np.diff(value_RT, axis=1) ** 2).mean(axis=0) == pytest.approx(np.full(4, 0.3 * 0.7 / 4), abs=0.002)
    assert set(np.unique(value_RT[:, -1])) == {0.0, 1.0}


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_posterior_belief_is_calibrated_and_the_plug_in_is_not(noise):
    rng = np.random.default_rng(0)
    rate = POPULATION.rates(100_000, rng)
    turn = np.zeros(len(rate), dtype=np.int64)
    posterior = NoisyPredictor(noise, "posterior").predict(rate, turn, POPULATION, rng)
    band = (posterior.mean_A > 0.4) & (posterior.mean_A < 0.6)
    assert rate[band].mean() == pytest.approx(0.5, abs=0.03)
    c = posterior.concentration_A[band]
    expected = (posterior.mean_A[band] * (1 - posterior.mean_A[band]) * c / (c + 1)).mean()
    assert (rate[band] * (1 - rate[band])).mean() == pytest.approx(expected, rel=0.05)
    plug_in = NoisyPredictor(noise).predict(rate, turn, POPULATION, rng)
    band = (plug_in.mean_A > 0.4) & (plug_in.mean_A < 0.6)
    assert (rate[band] * (1 - rate[band])).mean() < 0.9 * 0.25


def test_perfect_and_blind_predictors():
    rng = np.random.default_rng(0)
    rate, turn = np.array([0.1, 0.7]), np.array([0, 0])
    assert NoisyPredictor(0.0).predict(rate, turn, POPULATION, rng).mean_A.tolist() == [0.1, 0.7]
    assert NoisyPredictor(np.inf).predict(rate, turn, POPULATION, rng).mean_A == pytest.approx([expit(0.0)] * 2)
    blind = NoisyPredictor(np.inf, "posterior").predict(rate, turn, POPULATION, rng)
    assert blind.concentration_A == pytest.approx([POPULATION.concentration] * 2, rel=0.01)


def test_the_papers_regime():
    """Flat groups are mixed in a quarter of the prompts; choosing prompts, and branching, more than doubles that."""
    flat, chosen, roots_only = run("grpo"), run("pcl"), run("trace", shape=Shape(2 * POOL, 0, 8))
    assert flat["effective_ratio"] == pytest.approx(0.25, abs=0.03)
    assert chosen["effective_ratio"] == pytest.approx(0.67, abs=0.04)
    assert roots_only["effective_ratio"] == pytest.approx(0.61, abs=0.04)
    assert roots_only["mixed_prompts"] > chosen["mixed_prompts"]  # over more prompts
    assert run("trace")["effective_ratio"] > 0.7
    assert run("pcl", noise=0.0)["effective_ratio"] == pytest.approx(0.82, abs=0.04)
    assert run("trace", 0.0, shape=Shape(2 * POOL, 0, 8))["effective_ratio"] == pytest.approx(0.71, abs=0.04)


def test_each_half_of_trace_adds_and_both_add_most():
    energy = {arm: run(arm)["squared_gradient"] for arm in ("treepo", "trace-prefix", "trace-root", "trace")}
    assert energy["treepo"] < energy["trace-prefix"] < energy["trace-root"] < energy["trace"]
    flips = {arm: run(arm)["flip_rate"] for arm in ("treepo", "trace-prefix")}
    assert flips["trace-prefix"] > 1.5 * flips["treepo"]


def test_expected_utility_mixes_more_prompts_than_the_plug_in():
    assert run("trace", 4.0, "posterior")["mixed_prompts"] > 1.15 * run("trace", 4.0)["mixed_prompts"]


def test_unified_queue_gets_more_contrast_per_generated_turn():
    local, unified = run("trace", 2.0, "posterior"), run("trace-unified", 2.0, "posterior")
    assert unified["squared_gradient"] / unified["turns"] > 1.05 * local["squared_gradient"] / local["turns"]


@pytest.mark.parametrize("arm", ARMS)
def test_no_arm_exceeds_the_budget_or_counts_wrongly(arm):
    numbers = run(arm, belief="posterior")
    assert numbers["units"] <= 1.0
    assert numbers["mixed_prompts"] <= numbers["active_prompts"]
    if arm != "react":
        assert 0 < numbers["effective_ratio"] <= 1


def test_chunks_do_not_change_what_is_spent(monkeypatch):
    whole = {arm: run(arm) for arm in ("trace", "trace-unified")}
    monkeypatch.setattr("components.simulation.run.CHUNK", 1000)
    for arm, numbers in whole.items():
        parts = run(arm)
        assert parts["units"] <= 1.0
        assert parts["units"] == pytest.approx(numbers["units"], abs=0.01)
        assert parts["squared_gradient"] == pytest.approx(numbers["squared_gradient"], rel=0.05)


def test_sweep_fills_the_grid():
    cells = sweep(
        ["grpo", "trace"], [Shape(64, 2), Shape(32, 6)], [64, 256], [NoisyPredictor(2.0)], POPULATION, seeds=2
    )
    assert len(cells) == 8
    assert {cell.arm for cell in cells} == {"grpo", "trace"}
    assert all(cell.numbers["units"] <= 1 for cell in cells)
