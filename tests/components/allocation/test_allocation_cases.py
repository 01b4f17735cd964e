"""Faults of peers that concern allocation; docs/cases.md lists them all."""

from __future__ import annotations

import numpy as np
import pytest

from components.allocation.anchors import Belief, Seen
from components.allocation.arms import ARMS
from components.allocation.budget import Budget


@pytest.mark.parametrize(("successes", "failures"), [(0, 1), (1, 0), (0, 0), (3, 5)])
def test_c26_pseudo_counts_grow_by_the_rollouts_there_were(successes, failures):
    before = Belief(np.array([0.25]), np.array([8.0]))  # Beta(2, 6)
    after = before.after(np.array([successes]), np.array([failures]))
    alpha = float(after.mean_A[0] * after.concentration_A[0])
    assert alpha == pytest.approx(2.0 + successes)
    assert after.concentration_A[0] - alpha == pytest.approx(6.0 + failures)


@pytest.mark.parametrize("name", ["grpo", "pcl", "mopps"])
def test_c23_pool_smaller_than_the_batch_leaves_budget_unspent_instead_of_stalling(name):
    pool, budget = Belief.point(np.full(3, 0.5)), Budget(64, 2, 8)  # 16 groups of 8, for a pool of 3
    assert ARMS[name]().plan_roots(pool, Seen.nothing(3), budget, np.random.default_rng(0)).tolist() == [8, 8, 8]


def test_c24_choice_of_prompts_does_not_look_at_how_long_they_take():
    """The pool says nothing of lengths, and equal beliefs are equally likely to be chosen."""
    rng, pool = np.random.default_rng(0), Belief.point(np.full(40, 0.5))
    chosen = sum(ARMS["trace"]().plan_roots(pool, Seen.nothing(40), Budget(24, 2), rng) for _ in range(300))
    assert chosen[:20].sum() / chosen.sum() == pytest.approx(0.5, abs=0.03)
