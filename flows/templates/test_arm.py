"""The arm keeps to its budget and to its seed."""

import numpy as np
from example import Example

from components.allocation.anchors import Belief, Seen
from components.allocation.budget import Budget
from components.simulation import NoisyPredictor, Population, simulate


def test_budget_and_seed_decide_the_plan():
    pool, budget = Belief.point(np.linspace(0, 1, 101)), Budget(32, 2)
    plans = [Example().plan_roots(pool, Seen.nothing(101), budget, np.random.default_rng(0)) for _ in range(2)]
    assert 0 < plans[0].sum() <= budget.units
    assert plans[0].tolist() == plans[1].tolist()


def test_it_finds_more_contrast_than_chance():
    population, predictor = Population.with_mixed_share(0.23), NoisyPredictor(2.0, "posterior")
    run = simulate(Example(), Budget(256, 2), 1024, population, predictor, np.random.default_rng(0))
    assert run["effective_ratio"] > 0.23
