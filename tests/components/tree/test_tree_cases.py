"""Faults of peers that concern the forest and its accounts; docs/cases.md lists them all."""

from __future__ import annotations

import pytest

from components.params.root import compose
from components.tree.advantages import ADVANTAGES, terms_of
from components.tree.metrics import accounting


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_c07_nothing_pulls_on_a_dead_group(plant, kind):
    """There is no KL term: a dead group has no term at all, and no parameter could give it one."""
    assert len(terms_of(plant([1, 1], [0, 0]), kind)) == 0
    keys = compose({}).update.model_dump()
    assert not [key for key in keys if "kl" in key or "beta" in key or "entropy" in key]


def test_c11_lengths_are_those_of_what_was_sampled_masked_or_not(plant):
    forest = plant([(1, 5), (None, 50)])
    lengths = forest.action_tokens_N[forest.leaves_L]
    assert (lengths.min(), lengths.max()) == (5, 50)
    sheet = accounting(forest, terms_of(forest, "grpo"))
    assert forest.action_tokens_N.sum() == 55
    assert sheet["rollouts/unscored"] == 1


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_c24_long_rollouts_are_trained_as_often_as_short_ones(plant, kind):
    """Two kinds of prompts, short and ten times as long, equally frequent and equally often mixed."""
    outcomes = ([1, 0], [1, 1], [0, 1, 0], [0, 0])
    trees = [[(reward, length) for reward in tree] for length in (1, 10) for tree in outcomes]
    forest = plant(*trees)
    terms = terms_of(forest, kind)
    trained = set(terms.leaf_K.tolist())
    sampled = forest.action_tokens_N[forest.leaves_L].tolist()
    assert sampled.count(1) == sampled.count(10)
    lengths = [int(forest.action_tokens_N[leaf]) for leaf in trained]
    assert lengths.count(1) == lengths.count(10) == 5


def test_c21_two_of_ten_that_were_not_needed_are_wasted(plant):
    forest = plant([1, 0, 1, 0, 1, 0, 1, 0, None, None])
    assert accounting(forest, terms_of(forest, "grpo"))["budget/wasted"] == 2
