"""Hand-worked advantages, and the faults that group advantages are known for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.tree.advantages import ADVANTAGES, terms_of
from components.tree.forest import Forest
from components.tree.groups import leave_one_out, normalised, why_dropped
from components.tree.terms import Terms

KINDS = tuple(ADVANTAGES)


def by_term(terms: Terms) -> dict[tuple[int, int], float]:
    """The advantage of each (leaf, node)."""
    keys = zip(terms.leaf_K.tolist(), terms.node_K.tolist(), strict=True)
    return dict(zip(keys, terms.advantage_K.tolist(), strict=True))


def total_weight(forest: Forest, terms: Terms) -> float:
    return float((terms.weight_K * forest.action_tokens_N[terms.node_K]).sum())


# Hand-worked examples. Rows of plant([1, 0, [1, 0, 0]]): 0 root, 1 leaf, 2 leaf, 3 prefix, 4 5 6 its leaves.


def test_grpo_by_hand(plant):
    terms = terms_of(plant([1, 0, [1, 0, 0]]), "grpo")
    up, down = 0.6 / np.sqrt(0.24), -0.4 / np.sqrt(0.24)
    leaves = {(1, 1): up, (2, 2): down, (4, 4): up, (5, 5): down, (6, 6): down}
    shared = {(4, 3): up, (5, 3): down, (6, 3): down}
    assert by_term(terms) == pytest.approx(leaves | shared)
    weights = dict(zip(by_term(terms), terms.weight_K.tolist(), strict=True))
    assert weights[(1, 1)] == pytest.approx(1 / 5 / 2)  # five leaves, two tokens
    assert weights[(4, 3)] == pytest.approx(1 / 5 / 4)


def test_treerpo_by_hand(plant):
    terms = terms_of(plant([1, 0, [1, 0, 0]]), "treerpo")
    values = np.array([1, 0, 1 / 3])
    top = (values - values.mean()) / values.std()
    inner = (np.array([1, 0, 0]) - 1 / 3) / np.std([1, 0, 0])
    expected = {(1, 1): top[0], (2, 2): top[1], (4, 3): top[2], (4, 4): inner[0], (5, 5): inner[1], (6, 6): inner[2]}
    assert by_term(terms) == pytest.approx(expected)
    assert terms.weight_K == pytest.approx(np.full(6, 1 / 6 / 2))
    assert terms.groups == 2


def test_treerpo_backs_up_unweighted_means(plant):
    # the right child holds a leaf 1 and a subtree (0, 0, 0): R = 0.5, although its leaves average 0.25
    terms = terms_of(plant([0, [1, [0, 0, 0]]]), "treerpo")
    assert by_term(terms)[(1, 1)] == pytest.approx(-1.0)
    assert by_term(terms)[(3, 2)] == pytest.approx(1.0)


def test_only_child_continues_its_parents_edge(plant):
    terms = terms_of(plant([0, [[1]]]), "treerpo")  # rows 2, 3, 4 are one chain of three turns
    assert by_term(terms) == pytest.approx({(1, 1): -1.0, (4, 2): 1.0, (4, 3): 1.0, (4, 4): 1.0})
    assert terms.weight_K == pytest.approx([1 / 2 / 2, 1 / 2 / 6, 1 / 2 / 6, 1 / 2 / 6])


def test_only_child_of_the_root_has_no_advantage(plant):
    terms = terms_of(plant([[1, 0]]), "treerpo")
    assert by_term(terms) == pytest.approx({(2, 2): 1.0, (3, 3): -1.0})
    assert terms.dropped["singleton"] == 1


def test_tree_grpo_adds_what_it_normalised_separately(plant):
    forest = plant([1, 0, [1, 0, 0]])
    flat, edges, both = (by_term(terms_of(forest, kind)) for kind in ("grpo", "treerpo", "tree_grpo"))
    by_node = {node: a for (_, node), a in edges.items()}
    assert both == pytest.approx({(leaf, node): a + by_node[node] for (leaf, node), a in flat.items()})


def test_rloo_by_hand(plant):
    assert by_term(terms_of(plant([1, 0, 0]), "rloo")) == pytest.approx({(1, 1): 1.0, (2, 2): -0.5, (3, 3): -0.5})


def test_tree_loo_weights_siblings_by_their_leaves(plant):
    terms = by_term(terms_of(plant([1, [1, 0, 0, 0]]), "tree_loo"))
    expected = {(1, 1): 1 - 0.25, (3, 2): 0.25 - 1, (3, 3): 1.0, (4, 4): -1 / 3}
    assert {key: terms[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_terms_lie_on_the_path_of_their_leaf(plant, kind):
    forest = plant([1, 0, [1, [0, 1], 0]], [0, None, [[1], 0]])
    terms = terms_of(forest, kind)
    for leaf, node in zip(terms.leaf_K.tolist(), terms.node_K.tolist(), strict=True):
        assert node in forest.path(leaf)
        assert np.isfinite(forest.reward_N[leaf])


SPEC = st.recursive(
    st.sampled_from([0.0, 1.0, 0.4, None]), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=12
)


@pytest.mark.parametrize("kind", KINDS)
@given(trees=st.lists(st.lists(SPEC, min_size=1, max_size=4), min_size=1, max_size=4))
def test_weights_sum_to_one_and_numbers_are_finite(plant, kind, trees):
    forest = plant(*trees)
    terms = terms_of(forest, kind)
    assert np.isfinite(terms.advantage_K).all()
    assert (terms.weight_K > 0).all()
    assert total_weight(forest, terms) == pytest.approx(1.0 if len(terms) else 0.0)
    assert sum(terms.dropped.values()) <= terms.groups
    assert (len(terms) > 0) == (sum(terms.dropped.values()) < terms.groups)


# The faults.


def test_c01_zero_variance_groups_leave_numerator_and_denominator(plant):
    forest = plant([1, 1, 1, 1], [0, 0, 0, 0], [0.4] * 4, [1, 0, 0, 1])
    alone = terms_of(plant([1, 0, 0, 1]), "grpo")
    terms = terms_of(forest, "grpo")
    assert terms.dropped == {"all_pass": 1, "all_fail": 1, "constant": 1, "singleton": 0, "unscored": 0}
    assert terms.metrics()["groups/all_pass_frac"] == 0.25
    assert terms.advantage_K == pytest.approx(alone.advantage_K)
    assert terms.weight_K == pytest.approx(alone.weight_K)


def test_c02_float_noise_is_a_constant_group_and_is_not_scaled_up():
    rewards = np.array([1.0, 1.0, 1.0 + 1e-9])
    assert why_dropped(rewards) == "all_pass"
    assert np.abs(normalised(rewards)).max() < 1e-6
    assert np.abs(leave_one_out(rewards, np.ones(3))).max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_c04_singleton_does_not_get_its_raw_reward(plant, kind):
    terms = terms_of(plant([1], [1, 0], [1, 0, 0, 1]), kind)
    assert terms.dropped["singleton"] == 1
    assert 1 not in terms.node_K  # the only leaf of the first tree
    assert set(terms.node_K.tolist()) == {3, 4, 6, 7, 8, 9}


@pytest.mark.parametrize("kind", KINDS)
def test_c06_unscored_member_does_not_poison_its_group(plant, kind):
    terms = terms_of(plant([1, None, 0, 0]), kind)
    assert set(terms.leaf_K.tolist()) == {1, 3, 4}
    assert np.isfinite(terms.advantage_K).all()
    assert terms.advantage_K.sum() == pytest.approx(0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_c06_group_with_fewer_than_two_scored_members_is_dropped(plant, kind):
    terms = terms_of(plant([None, None], [1, None]), kind)
    assert len(terms) == 0
    assert terms.dropped["unscored"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_c08_dead_groups_are_found_in_the_group_not_the_batch(plant, kind):
    terms = terms_of(plant([1, 1], [0, 0]), kind)
    assert len(terms) == 0
    assert (terms.dropped["all_pass"], terms.dropped["all_fail"]) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_c09_masked_leaf_does_not_dilute_the_denominator(plant, kind):
    masked, without = terms_of(plant([1, 0, (None, 10)]), kind), terms_of(plant([1, 0]), kind)
    assert masked.weight_K == pytest.approx(without.weight_K)
    assert masked.advantage_K == pytest.approx(without.advantage_K)


@pytest.mark.parametrize("kind", KINDS)
def test_c10_fully_masked_batch_gives_no_terms_instead_of_nan(plant, kind):
    terms = terms_of(plant([None, None], [None]), kind)
    assert len(terms) == 0
    assert terms.groups == 2


def test_c12_every_turn_of_a_trajectory_carries_the_advantage(plant):
    forest = plant([[[1]], 0])
    for row, sampled in zip((1, 2, 3), (3, 7, 2), strict=True):
        node = forest.nodes[row]
        node.token_ids, node.is_action = list(range(sampled)), [True] * sampled
        node.logprobs = [-1.0] * sampled
    terms = terms_of(forest, "grpo")
    on_path = terms.leaf_K == 3
    assert terms.node_K[on_path].tolist() == [1, 2, 3]
    assert terms.advantage_K[on_path] == pytest.approx([1.0, 1.0, 1.0])
    assert terms.weight_K[on_path] == pytest.approx(np.full(3, 1 / 2 / 12))


def test_c16_weight_of_a_token_depends_on_the_length_of_its_own_leaf_only(plant):
    terms = terms_of(plant([(1, 10), (1, 100), (0, 50)]), "grpo")
    assert terms.weight_K == pytest.approx([1 / 3 / 10, 1 / 3 / 100, 1 / 3 / 50])


def test_c17_shared_node_has_one_term_per_leaf_and_is_not_summed_before_the_clip(plant):
    terms = terms_of(plant([[1, 0, 0]]), "grpo")
    shared = terms.advantage_K[terms.node_K == 1]
    assert shared.tolist() == pytest.approx([np.sqrt(2), -np.sqrt(0.5), -np.sqrt(0.5)])

    def clipped(advantage: float, ratio: float) -> float:
        return min(ratio * advantage, float(np.clip(ratio, 0.8, 1.2)) * advantage)

    assert sum(clipped(a, 1.0) for a in shared) == pytest.approx(clipped(float(shared.sum()), 1.0))
    assert clipped(1.0, 1.3) + clipped(-0.5, 1.3) == pytest.approx(0.55)
    assert clipped(0.5, 1.3) == pytest.approx(0.60)


def test_c18_signal_between_trees_survives_where_trees_agree_within(plant):
    terms = terms_of(plant([[1, 1, 1], [0, 0, 0]]), "tree_grpo")
    first = terms.advantage_K[np.isin(terms.leaf_K, [2, 3, 4])]
    assert (first > 0.99).all()
    assert (terms.advantage_K[np.isin(terms.leaf_K, [6, 7, 8])] < -0.99).all()


def test_identical_siblings_stay_two_draws(plant):
    forest = plant([1, 1, 0])
    forest.nodes[2].token_ids = list(forest.nodes[1].token_ids)
    assert by_term(terms_of(forest, "treerpo")).keys() == {(1, 1), (2, 2), (3, 3)}


def test_mean_advantage_of_a_node_is_weighted(plant):
    forest = plant([[1, 0, 0], 1])
    mean_N = terms_of(forest, "grpo").advantage_N(len(forest))
    assert np.isnan(mean_N[0])
    assert mean_N[1] == pytest.approx((1 - 1 - 1) / 3)
