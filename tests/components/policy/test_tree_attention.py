"""Which models see a packed tree: the masks, and the check that falls back to rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from components.policy.packing import tree_attention
from components.policy.packing.rows import layout, split
from components.policy.packing.tree_attention import block_mask, blocks
from components.policy.trainers import self_check
from components.policy.trainers.self_check import choose_packing
from components.tree.advantages import terms_of
from tests.components.policy.packed import (
    FLAT,
    SHAPES,
    TREE,
    VOCABULARY,
    assert_same,
    gradient,
    grow,
    near,
    qwen,
    row_of,
)


@pytest.mark.parametrize("make", [
    lambda: LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32,
                                         num_hidden_layers=2, num_attention_heads=4)),
    lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4)),
], ids=["rotary", "learned positions"])  # fmt: skip
def test_other_models_that_take_positions_are_packed_as_well(make):
    torch.manual_seed(0)
    model, trees = make().eval(), grow(SHAPES["several"])
    proximal = near(model, trees, "grpo")
    ours, theirs = (gradient(model, trees, update, proximal) for update in (TREE, FLAT))
    assert_same(ours, theirs)


@pytest.mark.parametrize("length", [1, 16, 40, 100])
def test_block_masks_are_the_ancestors_mask(monkeypatch, length):
    """Both forms of the mask, for the blocks of the CPU and for `flex_attention`, against i sees j <=> j <= i < end."""
    monkeypatch.setattr(tree_attention, "BLOCK", 16)
    monkeypatch.setattr(tree_attention, "FLEX_BLOCK", 16)
    rng = np.random.default_rng(length)
    rows = split([row_of(rng.integers(0, 2, length + 1).tolist()) for _ in range(5)], 1000)[0]
    end_T = torch.from_numpy(layout(rows).end_T)
    index = torch.arange(len(end_T))
    expected = (index <= index[:, None]) & (index[:, None] < end_T)

    tree = blocks(end_T, torch.float32)
    dense, begin, first = torch.zeros_like(expected), 0, 0
    for queries, keys, mask in zip(tree.queries, tree.keys, tree.masks, strict=True):
        place = tree.key_index[first : first + keys]
        dense[begin : begin + queries, place] = mask[0, 0] == 0
        begin, first = begin + queries, first + keys
    assert torch.equal(dense, expected)

    def sees(_, __, query, key):
        return (key <= query) & (query < end_T[key])

    ours = block_mask(end_T)
    theirs = create_block_mask(sees, None, None, len(end_T), len(end_T), device="cpu", BLOCK_SIZE=16)
    assert torch.equal(ours.to_dense().bool(), theirs.to_dense().bool())
    assert int(ours.full_kv_num_blocks.sum()) == int(theirs.full_kv_num_blocks.sum())


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_sees_what_the_blocks_see():
    """Uncompiled, as the CPU runs it: the mask that CUDA is given."""
    rows = split([row_of(np.random.default_rng(i).integers(0, 2, 80).tolist()) for i in range(4)], 1000)[0]
    end_T = torch.from_numpy(layout(rows).end_T)
    query, key, value = torch.randn(3, 1, 2, len(end_T), 8, generator=torch.Generator().manual_seed(0))
    module = torch.nn.Module()
    ours, _ = tree_attention.attention(module, query, key, value, None, tree=blocks(end_T, torch.float32))
    theirs = flex_attention(query, key, value, block_mask=block_mask(end_T)).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_model_that_ignores_the_tree_is_trained_on_rows(monkeypatch, caplog):
    plain = tree_attention.sdpa_attention_forward
    monkeypatch.setitem(
        tree_attention.AttentionInterface._global_mapping,
        tree_attention.NAME,
        lambda *args, tree=None, **kwargs: plain(*args, **kwargs),
    )
    monkeypatch.setattr(self_check, "_known", {})
    model, trees = qwen(), grow(SHAPES["several"])
    auto = TREE.model_copy(update={"packing": "auto"})
    for _ in range(2):
        settled, metrics = choose_packing(model, trees, terms_of(trees, "grpo"), auto, 1.0)
        assert settled.packing == "flat"
        assert metrics["packed"] == 0
    (record,) = caplog.records  # one line, also when it is asked again
    assert "Qwen3ForCausalLM cannot be trained on packed trees" in record.message
    assert model.config._attn_implementation == "sdpa"


def test_model_with_an_attention_of_its_own_is_trained_on_rows(caplog):
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2)).eval()
    trees = grow(SHAPES["star"])
    auto = TREE.model_copy(update={"packing": "auto"})
    settled, metrics = choose_packing(model, trees, terms_of(trees, "grpo"), auto, 1.0)
    assert settled.packing == "flat"
    assert metrics["packed"] == 0
    assert "an attention of its own" in caplog.text


def test_model_that_sees_trees_rightly_is_packed_and_the_check_is_made_once(monkeypatch):
    monkeypatch.setattr(self_check, "_known", {})
    model, trees = qwen(), grow(SHAPES["several"])
    auto, terms = TREE.model_copy(update={"packing": "auto"}), terms_of(trees, "grpo")
    settled, metrics = choose_packing(model, trees, terms, auto, 1.0)
    assert settled.packing == "tree"
    assert metrics["packed"] == 1
    assert 0 <= self_check.packed_difference(model, trees, terms, auto, 1.0) < 1e-5
    monkeypatch.setattr(self_check, "score", None)  # would fail if it were called again
    assert choose_packing(model, trees, terms, auto, 1.0)[0].packing == "tree"
