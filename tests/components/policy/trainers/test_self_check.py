"""The look, once, whether a model sees packed trees: it proves something, or it says that it does not."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from components.policy.packing import tree_attention
from components.policy.packing.batches import build_rows
from components.policy.trainers import self_check
from components.policy.trainers.learner import Learner
from components.policy.trainers.self_check import choose_packing, parts_to_look_at
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from tests.components.policy.forests import FLAT, SHAPES, TREE, VOCABULARY, grow, qwen

AUTO = TREE.model_copy(update={"packing": "auto"})


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch, caplog):
    monkeypatch.setattr(self_check, "_known", {})
    caplog.set_level(logging.INFO, "trace")


def chosen(model, trees, settings=AUTO, learner=Learner) -> str:
    update, metrics = choose_packing(learner(model), trees, terms_of(trees, "grpo"), settings, 1.0)
    assert metrics["packed"] == (update.packing == "tree")
    return update.packing


def replaced_attention(monkeypatch, attention) -> None:
    mapping = tree_attention.AttentionInterface._global_mapping
    monkeypatch.setitem(mapping, tree_attention.NAME, attention)


def ignoring(*args, tree=None, **kwargs):
    """An attention to which a packed tree is one long sequence."""
    return tree_attention.sdpa_attention_forward(*args, **kwargs)


def near_misses(*args, tree=None, **kwargs):
    """The right attention, but for a token in sixteen that sees one block too much."""
    if tree is None:
        return tree_attention.attention(*args, tree=tree, **kwargs)
    masks = [mask.clone() for mask in tree.masks]
    for mask in masks:
        mask[..., ::16, :] = mask[..., ::16, :].clamp(min=-1)
    return tree_attention.attention(*args, tree=replace(tree, masks=masks), **kwargs)


# Paths of each tree; the first trees in the order of packing have one path, where packed equals flat trivially.
FORESTS = {"several": grow(SHAPES["several"]), "1, 1, 4 paths": grow([[-1], [-1], [-1, -1, -1, -1]], seed=5)}


@pytest.mark.parametrize("broken", [ignoring, near_misses])
@pytest.mark.parametrize("trees", FORESTS.values(), ids=FORESTS)
def test_model_that_does_not_keep_the_mask_is_trained_on_rows(monkeypatch, caplog, broken, trees):
    replaced_attention(monkeypatch, broken)
    model = qwen()
    assert [chosen(model, trees) for _ in range(2)] == ["flat", "flat"]
    (record,) = caplog.records  # one line, also when it is asked again
    assert record.levelname == "WARNING"
    assert "Qwen3ForCausalLM cannot be trained on packed trees (log-probabilities differ" in record.message
    assert model.config._attn_implementation == "sdpa"


def test_model_with_an_attention_of_its_own_is_trained_on_rows(caplog):
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2)).eval()
    assert chosen(model, grow(SHAPES["star"])) == "flat"
    assert "an attention of its own" in caplog.text


@pytest.mark.parametrize("trees", FORESTS.values(), ids=FORESTS)
def test_model_that_sees_trees_rightly_is_packed_and_looked_at_once(monkeypatch, caplog, trees):
    assert chosen(qwen(), trees) == "tree"
    assert "trees are packed, each shared token is computed once (Qwen3ForCausalLM: checked on" in caplog.text
    monkeypatch.setattr(self_check, "term_logprobs", None)  # would fail if it were called again
    assert chosen(qwen(), trees) == "tree"
    assert len(caplog.records) == 1


def same_leaves():
    """A tree of two paths with the same tokens: packed or not, it is one sequence."""
    trees = grow(SHAPES["star"])
    return Forest([*trees.nodes[:2], replace(trees.nodes[1], node_id=2, sibling=1, reward=0.0)])


def without_effect():
    """A model in which it makes no difference what a token sees."""
    model = qwen()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    return model


@pytest.mark.parametrize(("make", "trees"), [(qwen, same_leaves()), (without_effect, FORESTS["several"])])
def test_look_that_decides_nothing_is_repeated_at_the_next_forest(caplog, make, trees):
    model = make()
    assert [chosen(model, trees) for _ in range(2)] == ["flat", "flat"]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    assert "is not decided yet (no token of this forest's paths depends on the mask)" in caplog.text
    assert chosen(qwen(), FORESTS["several"]) == "tree"


def test_mask_is_looked_at_in_fp32_where_layers_compute_in_bf16(monkeypatch):
    class Half(Learner):
        def within(self, function):
            with torch.autocast("cpu", torch.bfloat16):
                return function(self.model)

    bf16 = AUTO.model_copy(update={"dtype": "bf16"})
    assert chosen(qwen(layers=4), grow(SHAPES["several"]), bf16, Half) == "tree"
    monkeypatch.setattr(self_check, "_known", {})
    replaced_attention(monkeypatch, near_misses)
    assert chosen(qwen(layers=4), grow(SHAPES["several"]), bf16, Half) == "flat"


def test_first_process_decides_for_all(monkeypatch):
    class Second(Learner):
        def of_first(self, value):
            return False, "the first process says so"

    assert chosen(qwen(), grow(SHAPES["several"]), learner=Second) == "flat"


def test_packing_without_a_look_is_warned_of_once(caplog):
    for _ in range(2):
        assert chosen(qwen(), grow(SHAPES["star"]), TREE) == "tree"
        assert chosen(qwen(), grow(SHAPES["star"]), FLAT) == "flat"
    (record,) = caplog.records
    assert (record.levelname, "nobody looks" in record.message) == ("WARNING", True)


def test_short_paths_of_several_trees_are_looked_at():
    trees = grow(SHAPES["several"] + SHAPES["star"] * 4 + [[-1], [-1, 0]], seed=3)
    rows = build_rows(trees, terms_of(trees, "grpo"))
    parts = parts_to_look_at(trees, rows, 10_000)
    looked = [int(trees.tree_N[row.leaf]) for part in parts for row in part]
    assert len(set(looked)) == 4
    assert all(looked.count(tree) >= 2 for tree in looked)
    assert sum(len(row.token_ids) for part in parts for row in part) < sum(len(row.token_ids) for row in rows)
    assert parts_to_look_at(trees, rows, 1) == []  # parts of one path each
