"""The prefix planner (Eq. 16): against greedy, tree by tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.allocation.anchors import Anchors
from components.allocation.prefixes import fall_back_to_roots, is_open, plan_prefixes
from components.allocation.utilities import prefix_gain, prefix_utility
from tests.components.allocation.conftest import anchors_of


def utility(anchors: Anchors, counts: np.ndarray) -> np.ndarray:
    given_outcomes = anchors.belief.after(anchors.successes_A, anchors.failures_A)
    return prefix_utility(given_outcomes, anchors.successes_A > 0, counts)


def greedy(anchors: Anchors, tree: int, budget: int) -> float:
    """Most utility of one tree, unit by unit."""
    rows = np.flatnonzero(is_open(anchors) & (anchors.tree_A == tree))
    belief = anchors.belief[rows].after(anchors.successes_A[rows], anchors.failures_A[rows])
    counts = np.zeros(len(rows), dtype=np.int64)
    for _ in range(budget if len(rows) else 0):
        counts[prefix_gain(belief, anchors.successes_A[rows] > 0, counts).argmax()] += 1
    return float(prefix_utility(belief, anchors.successes_A[rows] > 0, counts).sum())


@settings(max_examples=80, deadline=None)
@given(
    factual=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    per_rollout=st.integers(0, 7),
    concentration=st.sampled_from([np.inf, 0.5, 10.0]),
    seed=st.integers(0, 1000),
)
def test_planner_reaches_greedy_in_every_tree(grow_anchors, factual, per_rollout, concentration, seed):
    rng = np.random.default_rng(seed)
    factual_S = np.array(factual, dtype=np.int64)
    anchors = grow_anchors(factual_S, rng, concentration=concentration)
    budget_S = factual_S * per_rollout
    counts = plan_prefixes(anchors, budget_S, rng)
    open_A = is_open(anchors)
    assert (counts[~open_A] == 0).all()
    for tree in range(len(factual)):
        mine = anchors.tree_A == tree
        assert counts[mine].sum() == (budget_S[tree] if (open_A & mine).any() else 0)
        assert utility(anchors, counts)[mine & open_A].sum() == pytest.approx(greedy(anchors, tree, budget_S[tree]))


def test_continuations_go_where_the_outcome_is_likely_to_flip():
    # a failed rollout from a promising prefix beats one from a hopeless prefix, and a success from a safe one
    anchors = anchors_of([0, 1, 1, 1], [1, 0, 0, 1], [2, 1, 1, 0], [0.5, 0.6, 0.05, 0.95])
    assert plan_prefixes(anchors, np.array([2])).tolist() == [0, 2, 0, 0]


def test_prefix_with_both_outcomes_has_its_contrast_and_is_skipped():
    anchors = anchors_of([0, 1, 2], [1, 1, 0], [1, 1, 1], [0.5, 0.5, 0.01])
    assert plan_prefixes(anchors, np.array([3])).tolist() == [0, 0, 3]


def test_prefix_without_a_scored_rollout_has_no_outcome_to_flip():
    anchors = anchors_of([0, 1, 1], [1, 0, 1], [0, 0, 0], [0.5, 0.5, 0.99])
    assert plan_prefixes(anchors, np.array([3])).tolist() == [0, 0, 3]


def test_tree_without_an_open_prefix_gets_factual_rollouts():
    anchors = anchors_of([0, 1], [1, 1], [1, 1], [0.5, 0.5])
    budget = np.array([5])
    assert plan_prefixes(anchors, budget).tolist() == [0, 0]
    assert fall_back_to_roots(anchors, is_open(anchors), budget).tolist() == [2, 0]  # half a unit stays unspent


def test_outcome_below_a_prefix_is_evidence_about_it():
    """Ignorance and two failures: the missing success is less likely than after one."""
    anchors = anchors_of([0, 1, 1], [0, 0, 0], [3, 2, 1], [0.5, 0.5, 0.5], concentration=2.0)
    assert plan_prefixes(anchors, np.array([1])).tolist() == [0, 0, 1]
    given = anchors.belief.after(anchors.successes_A, anchors.failures_A)
    assert given.mean_A[1:] == pytest.approx([1 / 4, 1 / 3])  # Laplace's rule of succession


def test_hopeless_prefixes_share_the_budget_evenly():
    anchors = anchors_of([0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1], [0.0, 0.0, 0.0, 0.0])
    assert sorted(plan_prefixes(anchors, np.array([7])).tolist()) == [0, 2, 2, 3]


def test_equal_prefixes_are_drawn_at_random():
    anchors = anchors_of([0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1], [0.4, 0.4, 0.4, 0.4])
    drawn = np.sum([plan_prefixes(anchors, np.array([1]), np.random.default_rng(i)) for i in range(900)], axis=0)
    assert drawn[1:] == pytest.approx([300, 300, 300], abs=80)


def test_no_active_prompts():
    empty = anchors_of([], [], [], [])
    assert plan_prefixes(empty, np.zeros(0, dtype=np.int64)).tolist() == []
