"""Arms that are local: nothing that a tree is granted after its roots are planned depends on other trees."""

from __future__ import annotations

import numpy as np
import pytest

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import plan_by_tree, root_rounds
from components.allocation.arms import ARMS
from components.allocation.budget import Budget

BUDGET = Budget(24, 2, 4)
LOCAL = [name for name, arm in ARMS.items() if arm.is_local]


def test_arms_with_a_queue_or_a_refill_over_the_pool_are_not_local():
    queues = {"trace-unified", "trace-unified-tokens"}
    refills = {name for name, arm in ARMS.items() if arm.refills}
    assert refills == {"grpo-filter", "pcl-filter", "reinforce-ada"}
    assert set(ARMS) - set(LOCAL) == queues | refills


@pytest.mark.parametrize("name", LOCAL)
def test_local_arm_plans_a_tree_alone_as_among_others(name, grow_anchors):
    factual_S, arm = np.array([3, 2, 5, 1, 4]), ARMS[name]()
    anchors = grow_anchors(factual_S, np.random.default_rng(0), concentration=4.0)
    together = plan_by_tree(arm, anchors, factual_S, BUDGET, [np.random.default_rng(tree) for tree in range(5)])
    for tree in range(5):
        rows = np.flatnonzero(anchors.tree_A == tree)
        rng = np.random.default_rng(tree)
        alone = plan_by_tree(arm, anchors.of_tree(rows), factual_S[[tree]], BUDGET, [rng])
        assert together[rows].tolist() == alone.tolist()
    at_once = arm.plan_continuations(anchors, factual_S, BUDGET, np.random.default_rng(0))
    granted, before = (np.bincount(anchors.tree_A, weights=counts) for counts in (together, at_once))
    assert granted.tolist() == before.tolist()  # the same budget in every tree; ties may fall otherwise


@pytest.mark.parametrize("name", LOCAL)
def test_local_arm_is_asked_for_roots_once(name):
    asked = []

    def sample(counts_P):
        asked.append(counts_P)
        return Seen(counts_P, np.zeros(16, dtype=np.int64), np.zeros(16, dtype=np.int64))  # nothing was scored

    rounds = root_rounds(ARMS[name](), Belief.ignorant(16), BUDGET, np.random.default_rng(0), sample)
    assert rounds == len(asked) == ARMS[name].samples


def test_no_anchors_are_no_continuations(grow_anchors):
    none = np.array([], dtype=np.int64)
    anchors = grow_anchors(none, np.random.default_rng(0))
    assert plan_by_tree(ARMS["trace"](), anchors, none, BUDGET, []).tolist() == []
