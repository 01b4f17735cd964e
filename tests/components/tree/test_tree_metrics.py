"""Effective ratio, flips, shared tokens and the accounts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from components.tree.advantages import ADVANTAGES, terms_of
from components.tree.forest import Forest
from components.tree.metrics import (
    accounting,
    budget_flow,
    effective_ratio_by_leaf,
    effective_ratio_by_prompt,
    effective_ratio_matched,
    flip_rates,
    unique_token_ratio,
    units,
)
from components.tree.schema import Node, Origin, StopReason


def test_c01_effective_ratio_of_four_groups(plant):
    forest = plant([1, 1, 1, 1], [0, 0, 0, 0], [0.4] * 4, [1, 0, 0, 1])
    assert effective_ratio_by_prompt(forest) == 0.25
    assert effective_ratio_by_leaf(forest) == 0.25


def test_ratio_by_leaf_counts_leaves_and_by_prompt_counts_prompts(plant):
    forest = plant([1, 0, [1, 0]], [1], [0])
    assert effective_ratio_by_prompt(forest) == pytest.approx(1 / 3)
    assert effective_ratio_by_leaf(forest) == pytest.approx(4 / 6)


def test_unscored_leaves_make_no_contrast(plant):
    assert effective_ratio_by_prompt(plant([1, None], [None])) == 0.0
    assert np.isnan(effective_ratio_by_leaf(plant([None])))
    assert np.isnan(effective_ratio_by_prompt(Forest([])))


@pytest.mark.parametrize("leaves", [2, 3, 5])
def test_matched_ratio_is_the_mean_over_all_subsets(plant, leaves):
    rewards = [1, 0, 0, 0, 0.4, 1]
    subsets = list(combinations(rewards, leaves))
    expected = np.mean([max(s) != min(s) for s in subsets])
    assert effective_ratio_matched(plant(rewards), leaves) == pytest.approx(expected)


def test_matched_ratio_does_not_favour_more_leaves(plant):
    few, many = plant([1, 0]), plant([1, 1, 1, 0, 0, 0])
    assert effective_ratio_matched(few, 2) == 1.0
    assert effective_ratio_matched(many, 2) == pytest.approx(9 / 15)
    assert np.isnan(effective_ratio_matched(few, 3))


def planned(forest: Forest) -> Forest:
    """The forest, its rollouts from the root being those of stage 1."""
    for node in forest.nodes:
        node.allocated = int((forest.parent_N == node.node_id).sum()) if node.parent_id < 0 else 0
    return forest


def test_flip_rate_counts_continuations_against_their_own_factual_rollout(plant):
    seen, _ = flip_rates(planned(plant([[0, 1, 0, 1, 1, None], [1, 1, 0]])))
    assert seen == pytest.approx(4 / 6)  # 3 of 4, and 1 of 2
    for nothing_to_flip in (plant([1, 0]), plant([[None, 1, 0]])):
        assert np.isnan(flip_rates(planned(nothing_to_flip))).all()


@pytest.mark.parametrize(("concentration", "chances"), [(None, (0.2, 0.1)), (1.0, (0.1, 0.05)), (3.0, (0.15, 0.075))])
@pytest.mark.parametrize("extra", [False, True])
def test_expected_flips_are_those_of_the_beliefs_when_stage_2_was_planned(plant, concentration, chances, extra):
    """Extra root rollouts, which pass prefixes that were never predicted and agree or not, change nothing."""
    forest = planned(plant([[0, 1, 0], [1, 1]], *([[[1]]] if extra else [])))  # three continuations, two of a failure
    for node, v_hat in zip(forest.nodes, (0.5, 0.2, 0.5, 0.5, 0.5, 0.9, 0.5, 0.5, 0.5), strict=False):
        node.v_hat, node.concentration = v_hat, concentration
    if extra:  # the last tree fell back to the root, and so did the first: its failing prefix now succeeds as well
        forest.nodes[8].allocated = 0
        again = forest.nodes[1]
        forest.nodes.append(
            Node(0, "p0", 11, 0, 1, Origin.FACTUAL, 0, 2, again.token_ids, again.is_action, again.logprobs)
        )
        end = {"stop_reason": StopReason.ANSWERED, "reward": 1.0}
        forest = Forest([*forest.nodes, Node(0, "p0", 12, 11, 2, Origin.FACTUAL, 0, 2, **end)])
    assert flip_rates(forest) == pytest.approx((1 / 3, (2 * chances[0] + chances[1]) / 3))


def test_unique_token_ratio(plant):
    assert unique_token_ratio(plant([1])) == 1.0
    # root 3, prefix 2 + 1, leaves 2 each: 10 tokens in the tree; two paths of 8
    assert unique_token_ratio(plant([[1, 0]])) == pytest.approx(10 / 16)


def test_units_cost_one_from_the_root_and_a_half_from_a_prefix(plant):
    assert units(plant([1, [0, 1, 1]], [0])) == 1 + 1 + 0.5 + 0.5 + 1


def test_budget_flow_is_units_by_what_they_bought_and_how_the_prompt_ended(plant):
    forest = plant([1, [0, 1, 1]], [0], [1, [1, 1]], [None])
    for node in forest.nodes:
        node.allocated = 1 if node.parent_id < 0 else node.allocated  # a second rollout is stage 2's
    flow = budget_flow(forest)
    assert flow == {
        ("factual rollouts", "mixed"): 1.0,
        ("further rollouts", "mixed"): 1.0,
        ("continuations after turn 1", "mixed"): 1.0,
        ("factual rollouts", "all fail"): 1.0,
        ("factual rollouts", "all succeed"): 1.0,
        ("further rollouts", "all succeed"): 1.0,
        ("continuations after turn 1", "all succeed"): 0.5,
        ("factual rollouts", "unscored"): 1.0,
    }
    assert sum(flow.values()) == units(forest)


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_c21_accounts_add_up_and_name_what_was_wasted(plant, kind):
    forest = plant([1, 0, [1, 0, None]], [1, 1], [None], [0, [0, 1]])
    sheet = accounting(forest, terms_of(forest, kind))
    assert sheet["rollouts/sampled"] == 11
    assert sheet["rollouts/sampled"] == sheet["rollouts/verified"] + sheet["rollouts/unscored"]
    assert sheet["rollouts/verified"] == sheet["rollouts/admitted"] + sheet["rollouts/without_contrast"]
    assert sheet["rollouts/admitted"] == sheet["rollouts/trained"] + sheet["rollouts/untrained"]
    assert (sheet["rollouts/verified"], sheet["rollouts/admitted"], sheet["rollouts/trained"]) == (9, 7, 7)
    assert sheet["budget/wasted"] == 4


def test_a_rollout_counts_as_trained_only_for_tokens_of_its_own(plant):
    """Continuations that repeat the outcome of their prefix teach nothing, though a term lies on their path."""
    sheet = accounting(forest := plant([1, [0, 0, 0]]), terms_of(forest, "treerpo"))
    assert (sheet["rollouts/admitted"], sheet["rollouts/trained"], sheet["budget/wasted"]) == (4, 2, 2)


def test_c20_size_of_the_update_is_reported_when_groups_are_dropped(plant):
    forest = plant([1, 1], [0, 0], [1, 1], [1, 0])
    terms = terms_of(forest, "grpo")
    assert terms.groups - sum(terms.dropped.values()) == 1
    assert accounting(forest, terms)["rollouts/trained"] == 2


def test_c28_every_paid_leaf_is_in_the_accounts(plant):
    forest = plant([1, 0, 1, 1, 0, 0, 1, 1])
    sheet = accounting(forest, terms_of(forest, "grpo"))
    assert sheet["rollouts/verified"] == sheet["rollouts/sampled"] == 8


def test_a_prefix_that_two_rollouts_share_has_its_contrast_and_nothing_to_flip():
    """Two nodes of the same tokens are one history: its factual rollouts disagree, so a continuation flips nothing."""
    nodes = [Node(0, "p", 0, -1, 0, Origin.ROOT)]
    for reward in (1.0, 0.0):
        at = len(nodes)
        turn = {"token_ids": [5], "is_action": [True], "logprobs": [-0.1]}
        nodes.append(Node(0, "p", at, 0, 1, Origin.FACTUAL, anchor_id=0, **turn))
        nodes.append(
            Node(0, "p", at + 1, at, 2, Origin.FACTUAL, anchor_id=0, stop_reason=StopReason.ANSWERED, reward=reward)
        )
    nodes.append(Node(0, "p", 5, 1, 2, Origin.COUNTERFACTUAL, anchor_id=1, stop_reason=StopReason.ANSWERED, reward=0.0))
    assert np.isnan(flip_rates(Forest(nodes))).all()
