"""Visited anchors (Eq. 14)."""

from __future__ import annotations

import numpy as np
import pytest

from components.allocation.anchors import Belief
from components.tree.anchors import visited_anchors


def test_anchors_are_roots_and_non_terminal_turns(plant):
    # rows: 0 root; 1, 2 prefixes, 3 leaf of the first rollout; 4 leaf of the second; 5 root; 6 leaf
    anchors = visited_anchors(plant([[[1]], 0], [0]))
    assert anchors.node_A.tolist() == [0, 1, 2, 5]
    assert anchors.tree_A.tolist() == [0, 0, 0, 1]
    assert anchors.turn_A.tolist() == [0, 1, 2, 0]
    assert anchors.successes_A.tolist() == [1, 1, 1, 0]
    assert anchors.failures_A.tolist() == [1, 0, 0, 1]
    assert anchors.suffix_tokens_A.tolist() == [(6 + 2) / 2, 4, 2, 2]
    assert anchors.surprisal_A.tolist() == [1, 1, 1, 1]


def test_continuations_are_neither_anchors_nor_factual_outcomes(plant):
    anchors = visited_anchors(plant([[0, [1]]]))  # the prefix's continuation has a turn of its own
    assert anchors.node_A.tolist() == [0, 1]
    assert anchors.successes_A.tolist() == [0, 0]
    assert anchors.failures_A.tolist() == [1, 1]


def test_identical_prefixes_are_one_anchor_and_pool_their_outcomes(plant):
    forest = plant([[[1]], [[0]]])  # rows 1 2 3 and 4 5 6
    forest.nodes[4].token_ids = list(forest.nodes[1].token_ids)
    anchors = visited_anchors(forest)
    assert anchors.node_A.tolist() == [0, 1, 2, 5]
    assert anchors.successes_A.tolist() == [1, 1, 1, 0]
    assert anchors.failures_A.tolist() == [1, 1, 0, 1]


def test_equal_tokens_after_different_histories_stay_apart(plant):
    forest = plant([[[1]], [[0]]])
    forest.nodes[5].token_ids = list(forest.nodes[2].token_ids)
    assert visited_anchors(forest).node_A.tolist() == [0, 1, 2, 4, 5]


def test_unscored_rollouts_make_no_outcome(plant):
    anchors = visited_anchors(plant([[None], [1]]))
    assert anchors.successes_A.tolist() == [1, 0, 1]
    assert anchors.failures_A.tolist() == [0, 0, 0]


def test_belief_is_ignorance_until_a_predictor_speaks(plant):
    forest = plant([[1], 0])
    anchors = visited_anchors(forest)
    assert anchors.belief.concentration_A.tolist() == [2, 2]
    predicted = anchors.with_belief(Belief.point(np.array([0.3, 0.9])))
    assert predicted.belief.mean_A.tolist() == [0.3, 0.9]
    with pytest.raises(ValueError, match="3 beliefs for 2 anchors"):
        anchors.with_belief(Belief.ignorant(3))
    forest.nodes[0].v_hat, forest.nodes[1].v_hat = 0.25, 0.75
    assert visited_anchors(forest).belief.mean_A.tolist() == [0.25, 0.75]
