"""Backed-up values (Eq. 18) and the unweighted means of TreeRPO."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason
from components.tree.values import child_values, leaf_values, own_rollouts


def test_the_two_means_differ_where_the_tree_branches_unevenly(plant):
    forest = plant([1, [1, 0, 0, 0]])  # rows: 0 root, 1 leaf, 2 prefix, 3 4 5 6 leaves
    value_N, count_N = leaf_values(forest)
    assert value_N == pytest.approx([2 / 5, 1, 1 / 4, 1, 0, 0, 0])
    assert count_N.tolist() == [5, 1, 4, 1, 1, 1, 1]
    assert child_values(forest) == pytest.approx([(1 + 1 / 4) / 2, 1, 1 / 4, 1, 0, 0, 0])


def test_unscored_leaves_are_not_zeros(plant):
    value_N, count_N = leaf_values(plant([1, None, [None, None]]))
    assert value_N[0] == 1.0
    assert count_N.tolist() == [1, 1, 0, 0, 0, 0]
    assert np.isnan(value_N[[2, 3, 4, 5]]).all()
    assert child_values(plant([1, None, [None, None]]))[0] == 1.0


SPEC = st.recursive(
    st.sampled_from([0.0, 1.0, None]), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=9
)


@given(tree=st.lists(SPEC, min_size=1, max_size=4))
def test_leaf_value_is_the_mean_of_the_leaves_below(plant, tree):
    forest = plant(tree)
    value_N, count_N = leaf_values(forest)
    for row in range(len(forest)):
        below = [forest.reward_N[leaf] for leaf in forest.scored_L if row in forest.path(leaf)]
        assert count_N[row] == len(below)
        assert value_N[row] == pytest.approx(np.mean(below)) if below else np.isnan(value_N[row])


def test_c29_nodes_share_no_mutable_default():
    a, b = Node(0, "p", 0, -1, 0, Origin.ROOT), Node(0, "p", 0, -1, 0, Origin.ROOT)
    a.token_ids.append(1)
    assert b.token_ids == []


def test_empty_forest_has_no_values():
    value_N, count_N = leaf_values(Forest([]))
    assert len(value_N) == len(count_N) == 0


def test_rollouts_sampled_later_do_not_count_above_their_anchor(plant):
    """The factual rollout failed; two continuations of its prefix succeed, and say nothing new of the root."""
    nodes = plant([0, [0]]).nodes
    for sibling in range(2):
        nodes.append(
            Node(0, nodes[0].prompt_id, len(nodes), 2, 2, Origin.COUNTERFACTUAL, anchor_id=2, sibling=sibling,
                 stop_reason=StopReason.ANSWERED, reward=1.0)
        )  # fmt: skip
    for row in (1, 2, 3):
        nodes[row].anchor_id = 0
    sum_N, count_N = own_rollouts(Forest(nodes))
    assert (sum_N[0], count_N[0]) == (0, 2)
    assert (sum_N[2], count_N[2]) == (2, 3)


def test_outcome_dependent_expansion_biases_leaf_means_but_not_own_rollouts():
    """V is 1/2 at root and prefix, and failed rollouts get a continuation: Eq. 18 drifts at the root."""
    rng, leaf_means, own_means = np.random.default_rng(0), [], []
    for _ in range(2000):
        reward = float(rng.random() < 0.5)
        nodes = [
            Node(0, "p", 0, -1, 0, Origin.ROOT),
            Node(0, "p", 1, 0, 1, Origin.FACTUAL, anchor_id=0),
            Node(0, "p", 2, 1, 2, Origin.FACTUAL, anchor_id=0, stop_reason=StopReason.ANSWERED, reward=reward),
        ]
        if not reward:
            again = float(rng.random() < 0.5)
            end = {"anchor_id": 1, "stop_reason": StopReason.ANSWERED, "reward": again}
            nodes.append(Node(0, "p", 3, 1, 2, Origin.COUNTERFACTUAL, **end))
        forest = Forest(nodes)
        sum_N, count_N = own_rollouts(forest)
        own_means.append(sum_N[0] / count_N[0])
        leaf_means.append(leaf_values(forest)[0][0])
    assert np.mean(own_means) == pytest.approx(0.5, abs=0.04)
    assert np.mean(leaf_means) > 0.58  # 1/2 + 1/2 * 1/2 * 1/2 = 0.625
