"""The root planner (Eq. 13): against the dynamic programme, and the programme against enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.allocation.anchors import Belief
from components.allocation.roots import plan_roots
from components.allocation.utilities import root_gain, root_utility
from tests.components.allocation.roots_dp import plan_roots_dp

RATES = st.one_of(
    st.lists(st.floats(0, 1), max_size=8),
    st.lists(st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.75, 0.1]), max_size=8),
)
CAP = st.sampled_from([None, 2, 3, 4, 7])
CONCENTRATION = st.sampled_from([np.inf, 0.05, 0.4, 2.0, 50.0, 1e7])


def value(belief: Belief, counts: np.ndarray) -> float:
    return float(root_utility(belief, counts).sum())


def check(belief: Belief, budget: int, cap: int | None, counts: np.ndarray) -> None:
    best = plan_roots_dp(belief, budget, cap)
    assert counts.dtype == np.int64
    assert ((counts == 0) | (counts >= 2)).all()
    assert cap is None or counts.max(initial=0) <= cap
    assert counts.sum() == best.sum() <= budget
    assert value(belief, counts) == pytest.approx(value(belief, best), abs=1e-12)


@settings(max_examples=400, deadline=None)
@given(rates=RATES, concentration=CONCENTRATION, budget=st.integers(0, 24), cap=CAP, seed=st.integers(0, 9))
def test_planner_reaches_the_dynamic_programme(rates, concentration, budget, cap, seed):
    belief = Belief(np.array(rates, dtype=float), np.full(len(rates), concentration))
    check(belief, budget, cap, plan_roots(belief, budget, cap, np.random.default_rng(seed)))


@pytest.mark.parametrize("shape", [0.1, 0.3, 1.0, 5.0])
def test_planner_reaches_the_dynamic_programme_on_random_pools(shape):
    rng = np.random.default_rng(7)
    for _ in range(60):
        prompts, cap = int(rng.integers(1, 30)), [None, 2, 3, 5][rng.integers(4)]
        concentration = rng.choice([np.inf, 0.3, 4.0], prompts)
        belief = Belief(rng.beta(shape, shape, prompts), concentration)
        budget = int(rng.integers(0, 60))
        check(belief, budget, cap, plan_roots(belief, budget, cap, rng))


@settings(max_examples=60, deadline=None)
@given(rates=st.lists(st.floats(0, 1), min_size=1, max_size=4), budget=st.integers(0, 8), cap=CAP)
def test_dynamic_programme_reaches_enumeration(rates, budget, cap):
    belief = Belief.point(np.array(rates))
    top = min(budget, cap or budget)
    plans = [np.array(p) for p in product([0, *range(2, top + 1)], repeat=len(rates)) if sum(p) <= budget]
    spent = max(int(p.sum()) for p in plans)
    best = max(value(belief, p) for p in plans if p.sum() == spent)
    counts = plan_roots_dp(belief, budget, cap)
    assert counts.sum() == spent
    assert value(belief, counts) == pytest.approx(best, abs=1e-12)


def test_greedy_by_single_rollouts_would_miss_the_optimum():
    """The second rollout pays for two: at M = 4 a third and fourth on the first prompt lose to a pair on the second."""
    belief = Belief.point(np.array([0.5, 0.35]))
    assert plan_roots(belief, 4).tolist() == [2, 2]
    assert plan_roots(belief, 3).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("rates", "budget", "cap", "expected"),
    [
        ([0.5, 0.01], 4, None, [4, 0]),  # (a) the last unit goes on
        ([0.5, 0.4], 4, None, [2, 2]),  # (b) a third rollout is given up for a pair
        ([0.5, 0.01], 4, 3, [2, 2]),  # (a) is not possible
        ([0.5, 0.4, 0.3], 5, 2, [2, 2, 0]),  # an odd unit that no plan can spend
        ([0.5], 1, None, [0]),
        ([0.5, 0.5], 100, 3, [3, 3]),
        ([], 10, None, []),
    ],
)
def test_boundary_cases(rates, budget, cap, expected):
    assert plan_roots(Belief.point(np.array(rates, dtype=float)), budget, cap).tolist() == expected


def test_certain_prompts_get_rollouts_only_after_every_useful_one():
    belief = Belief.point(np.array([0.0, 0.5, 1.0, 0.3]))
    counts = plan_roots(belief, 20)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert counts.sum() == 20
    assert plan_roots(Belief.point(np.array([0.0, 1.0])), 7).sum() == 7
    assert plan_roots(belief, 14, cap=4).sum() == 14


def test_equal_prompts_are_not_taken_in_pool_order():
    belief = Belief.ignorant(100)
    counts = plan_roots(belief, 60, rng=np.random.default_rng(1))
    again = plan_roots(belief, 60, rng=np.random.default_rng(1))
    other = plan_roots(belief, 60, rng=np.random.default_rng(2))
    assert (counts == again).all()
    assert (counts != other).any()
    assert counts[:50].sum() not in (0, 60)
    assert counts.sum() == 60


def test_every_prompt_of_a_tie_is_equally_likely():
    rng = np.random.default_rng(0)
    taken = np.sum([plan_roots(Belief.ignorant(10), 9, rng=rng) > 0 for _ in range(2000)], axis=0)
    assert taken == pytest.approx(np.full(10, 600), abs=100)


def test_weights_change_what_a_mixed_group_is_worth():
    belief = Belief.point(np.array([0.3, 0.7]))
    assert plan_roots(belief, 3, weight_P=np.array([1.0, 3.0])).tolist() == [0, 3]


def test_large_pool_is_planned_exactly_and_keeps_its_threshold():
    rng = np.random.default_rng(0)
    belief = Belief(rng.beta(0.3, 0.3, 100_000), rng.choice([np.inf, 3.0], 100_000))
    counts = plan_roots(belief, 60_000, rng=rng)
    assert counts.sum() == 60_000
    active = np.flatnonzero(counts)
    smallest = root_gain(belief[active], counts[active] - 1).min()
    assert root_gain(belief[active], counts[active]).max() <= smallest * (1 + 1e-9)


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="cap=1"):
        plan_roots(Belief.ignorant(3), 4, cap=1)
    with pytest.raises(ValueError, match="budget=-1"):
        plan_roots(Belief.ignorant(3), -1)
