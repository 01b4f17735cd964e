"""The mask of a packed tree, in the forms that the CPU and CUDA take, and models that it is given to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from components.policy.packing import tree_attention
from components.policy.packing.rows import layout, split
from components.policy.packing.tree_attention import block_mask, blocks
from tests.components.policy.forests import FLAT, SHAPES, TREE, VOCABULARY, assert_same, gradient, grow, near, row_of


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
