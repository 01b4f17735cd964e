"""Arms that are local: nothing that a tree is granted after its roots are planned depends on other trees."""

from __future__ import annotations

import numpy as np
import pytest

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import plan_by_tree
from components.allocation.arms import ARMS
from components.allocation.budget import Budget

SHAPE = Budget(24, 2, 4)
LOCAL = [name for name, arm in ARMS.items() if arm.is_local]


def test_arms_with_a_queue_or_a_refill_over_the_pool_are_not_local():
    assert set(ARMS) - set(LOCAL) == {
        "grpo-filter", "pcl-filter", "reinforce-ada", "trace-unified", "trace-unified-tokens"
    }  # fmt: skip


@pytest.mark.parametrize("name", LOCAL)
def test_local_arm_plans_a_tree_alone_as_among_others(name, grow_anchors):
    bare = np.array([3, 2, 5, 1, 4])
    anchors = grow_anchors(bare, np.random.default_rng(0), concentration=4.0)
    together = plan_by_tree(ARMS[name], anchors, bare, SHAPE, [np.random.default_rng(tree) for tree in range(5)])
    for tree in range(5):
        rows = np.flatnonzero(anchors.tree_A == tree)
        alone = plan_by_tree(ARMS[name], anchors.of_tree(rows), bare[[tree]], SHAPE, [np.random.default_rng(tree)])
        assert together[rows].tolist() == alone.tolist()
    at_once = ARMS[name].plan_continuations(anchors, bare, SHAPE, np.random.default_rng(0))
    granted, before = (np.bincount(anchors.tree_A, weights=counts) for counts in (together, at_once))
    assert granted.tolist() == before.tolist()  # the same budget in every tree; ties may fall otherwise


@pytest.mark.parametrize("name", LOCAL)
def test_local_arm_asks_for_no_refill(name):
    pool, zero = Belief.ignorant(16), np.zeros(16, dtype=np.int64)
    rng = np.random.default_rng(0)
    sampled = ARMS[name].plan_roots(pool, SHAPE, rng)
    for seen in (Seen(sampled, sampled, zero), Seen(sampled, zero, sampled), Seen(sampled, zero, zero)):
        assert not ARMS[name].refill(pool, seen, SHAPE, rng).any()


def test_no_anchors_are_no_continuations(grow_anchors):
    none = grow_anchors(np.array([], dtype=np.int64), np.random.default_rng(0))
    assert plan_by_tree(ARMS["trace"], none, np.array([], dtype=np.int64), SHAPE, []).tolist() == []
