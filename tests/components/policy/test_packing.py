"""Packed trees against flat rows: the same log-probabilities, the same gradients, each shared token once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from components.config import UpdateParams
from components.errors import UserError
from components.policy import loss, self_check, tree_attention
from components.policy.batches import Proximal, build_rows, collate, micro_batches, pack
from components.policy.loss import batch_loss, score
from components.policy.packing import Row, layout, split
from components.policy.self_check import settle_packing
from components.policy.trainer_torch import TorchTrainer
from components.policy.tree_attention import block_mask, blocks
from components.storage import content_hash
from components.tree.advantages import ADVANTAGES, credit
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason

VOCABULARY = 40
TREE = UpdateParams(advantage="grpo", packing="tree")
FLAT = TREE.model_copy(update={"packing": "flat"})
SHAPES = {
    "star": [[-1, -1, -1, -1]],
    "chains": [[-1, 0, 1, -1, 3, 4]],
    "late branches": [[-1, 0, 1, 2, 0, 1, 2, 2]],
    "bushy": [[-1, 0, 0, 0, -1, 4, 4, 5, 5]],
    "several": [[-1, -1], [-1, 0, 0], [-1, -1, 0, 0, 1]],
}


def qwen(tied: bool = False, layers: int = 2) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()


def grow(trees: list[list[int]], seed: int = 0, vocabulary: int = VOCABULARY, longest: int = 6) -> Forest:
    """Trees given by each node's parent among its own (-1: the prompt); turns of sampled and observed tokens."""
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    for tree_id, parents in enumerate(trees):
        root = len(nodes)
        for index, parent in enumerate([None, *parents]):
            leaf = parent is not None and index - 1 not in parents
            acted = 0 if parent is None else int(rng.integers(1, longest + 1))
            seen = 4 if parent is None else 0 if leaf else int(rng.integers(0, 4))
            nodes.append(
                Node(
                    tree_id,
                    f"p{tree_id}",
                    len(nodes),
                    -1 if parent is None else root + 1 + parent,
                    0 if parent is None else nodes[root + 1 + parent].turn + 1,
                    Origin.ROOT if parent is None else Origin.FACTUAL,
                    anchor_id=root,
                    sibling=index,
                    token_ids=rng.integers(0, vocabulary, acted + seen).tolist(),
                    is_action=[True] * acted + [False] * seen,
                    logprobs=[-3.0] * acted + [np.nan] * seen,
                    stop_reason=StopReason.ANSWERED if leaf else None,
                    reward=float(rng.integers(0, 2)) if leaf else None,
                )
            )
        leaves = [n for n in nodes[root:] if n.is_terminal]
        if len(leaves) > 1:  # every tree with two leaves has contrast
            leaves[0].reward, leaves[-1].reward = 1.0, 0.0
    return Forest(nodes)


def near(model, trees: Forest, kind: str, seed: int = 0) -> Proximal:
    """Old log-probabilities around the model's own: ratios from 0.6 to 1.6, weights from 0.5 to 2."""
    rng, terms = np.random.default_rng(seed), credit(trees, kind)
    logprob_T = trees.logprob_T.copy()
    with torch.no_grad():
        for batch in micro_batches(trees, terms, FLAT):
            logprob_T[batch.token_K] = score(model, batch, 0.8).numpy()
    return Proximal(logprob_T + rng.uniform(-0.47, 0.47, len(logprob_T)), rng.uniform(0.5, 2, len(logprob_T)))


def gradient(model, trees: Forest, update: UpdateParams, proximal: Proximal, temperature: float = 0.8) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    for batch in micro_batches(trees, credit(trees, update.advantage), update, proximal):
        batch_loss(model, batch, update, temperature)[0].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def reference_gradient(model, trees: Forest, update: UpdateParams, proximal: Proximal, temperature: float = 0.8):
    """The loss as the method writes it, term by term, each with a forward pass of its own."""
    model.zero_grad(set_to_none=True)
    model.set_attn_implementation("sdpa")
    terms, total = credit(trees, update.advantage), torch.zeros(())
    for node, advantage, weight in zip(terms.node_K, terms.advantage_K, terms.weight_K, strict=True):
        ids, acted = trees.prefix_ids(node), sum(trees.nodes[node].is_action)
        begin = len(ids) - len(trees.nodes[node].token_ids)
        logits = model(torch.tensor([ids])).logits[0, begin - 1 : begin - 1 + acted] / temperature
        new = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[begin : begin + acted])[:, None])[:, 0]
        place = slice(trees.first_N[node], trees.first_N[node] + acted)
        ratio = torch.exp(new - torch.from_numpy(proximal.logprob_T[place]))
        clipped = ratio.clamp(1 - update.clip_low, 1 + update.clip_high)
        each = torch.minimum(ratio * advantage, clipped * advantage) * torch.from_numpy(proximal.weight_T[place])
        total = total - weight * each.sum()
    total.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert theirs.abs().max() > 0
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ADVANTAGES)
def test_gradient_of_packed_trees_equals_the_one_written_out_term_by_term(monkeypatch, shape, kind):
    monkeypatch.setattr(tree_attention, "BLOCK", 16)
    model, trees = qwen(), grow(SHAPES[shape], seed=3)
    proximal, update = near(model, trees, kind), TREE.model_copy(update={"advantage": kind})
    assert_same(gradient(model, trees, update, proximal), reference_gradient(model, trees, update, proximal))


def test_terms_of_these_tests_are_clipped_on_both_sides_and_carry_both_signs():
    """What the equalities above are worth: nothing, if no ratio left the clip range."""
    model, trees = qwen(), grow(SHAPES["several"], seed=3)
    (batch,) = micro_batches(trees, credit(trees, "grpo"), TREE, near(model, trees, "grpo"))
    ratio = torch.exp(score(model, batch, 0.8) - batch.old_logprob_K)
    for sign in (-1, 1):
        told = ratio[batch.advantage_K * sign > 0]
        assert (told < 0.8).any()
        assert (told > 1.28).any()
        assert ((told > 0.8) & (told < 1.28)).any()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tokens", [12, 25, 60, 10_000])
def test_trees_split_into_several_batches_have_the_same_gradient(tied, tokens):
    model, trees = qwen(tied), grow(SHAPES["several"] + SHAPES["late branches"], seed=1)
    proximal = near(model, trees, "grpo")
    few = TREE.model_copy(update={"micro_batch_tokens": tokens})
    assert_same(gradient(model, trees, few, proximal), gradient(model, trees, FLAT, proximal))


@st.composite
def forests(draw) -> Forest:
    def tree() -> list[int]:
        return [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, 9)))]

    trees = [tree() for _ in range(draw(st.integers(1, 4)))]
    return grow([*trees, [-1, -1]], draw(st.integers(0, 99)), draw(st.sampled_from([2, VOCABULARY])))


@settings(max_examples=15, deadline=None)
@given(forests(), st.sampled_from(list(ADVANTAGES)), st.integers(5, 80), st.sampled_from([4, 32]))
def test_any_forest_has_the_same_gradient_packed_and_flat(trees, kind, tokens, block):
    """A vocabulary of two makes siblings, and trees, begin with the same tokens."""
    model = qwen(layers=1)
    proximal = near(model, trees, kind)
    packed = TREE.model_copy(update={"advantage": kind, "micro_batch_tokens": tokens})
    flat = FLAT.model_copy(update={"advantage": kind, "micro_batch_tokens": tokens})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "BLOCK", block)
        ours = gradient(model, trees, packed, proximal)
    theirs = gradient(model, trees, flat, proximal)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max() + 1e-9


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


def row_of(ids: list[int], trained: int = 1) -> Row:
    weight = np.array([0.0] * (len(ids) - trained) + [1.0] * trained)
    return Row(np.array(ids), np.zeros(len(ids)), np.ones(len(ids)), weight, np.arange(len(ids)), 0)


def test_c69_first_token_of_a_child_is_predicted_from_its_parents_last_position():
    """A-B-{C-D, E}: each leaf's log-probabilities are those of a plain forward pass."""
    model, paths = qwen(), [[1, 2, 3, 4], [1, 2, 5]]
    rows = split([row_of(path, len(path) - 1) for path in paths], 100)[0]
    batch = pack(rows)
    logprob = score(model, batch, 1.0)
    for index, path in enumerate(paths):
        logits = model(torch.tensor([path])).logits[0, :-1]
        plain = torch.log_softmax(logits, -1).gather(1, torch.tensor(path[1:])[:, None])[:, 0]
        torch.testing.assert_close(logprob[batch.path_K == index], plain, atol=1e-5, rtol=0)


def test_shared_tokens_stand_once_and_last_tokens_are_only_predicted():
    rows = [row_of([1, 2, 3, 4, 5]), row_of([1, 2, 3, 4, 6]), row_of([1, 2, 7, 8]), row_of([9, 2])]
    packed = layout(rows)
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 7, 9]
    assert packed.position_T.tolist() == [0, 1, 2, 3, 2, 0]
    assert packed.end_T.tolist() == [5, 5, 4, 4, 5, 6]
    batch = pack(rows)
    assert batch.predictor_Q.tolist() == [3, 3, 4, 5]
    assert batch.target_Q.tolist() == [5, 6, 8, 2]


def test_siblings_that_sampled_the_same_tokens_keep_a_term_each():
    rows = [row_of([1, 2, 3]), row_of([1, 2, 3])]
    batch = pack(rows)
    assert batch.input_ids.tolist() == [[1, 2]]
    assert batch.prediction_K.tolist() == [0, 0]


def test_full_part_is_cut_where_least_is_repeated():
    one = [row_of([1, 2, 3, 4, 5, end, 0]) for end in (6, 7, 8)]  # 6 + 1 + 1 tokens
    two = [row_of([2, 2, 3, 4, 5, end, 0]) for end in (6, 7, 8)]
    assert [len(part) for part in split(one + two, 15)] == [3, 3]
    assert [len(part) for part in split(one, 7)] == [2, 1]
    assert [len(part) for part in split(one, 3)] == [1, 1, 1]  # a longer row stands alone


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
        settled, metrics = settle_packing(model, trees, credit(trees, "grpo"), auto, 1.0)
        assert settled.packing == "flat"
        assert metrics["packed"] == 0
        assert metrics["packed_difference"] > 1e-4
    (record,) = caplog.records  # one line, also when it is asked again
    assert "Qwen3ForCausalLM cannot be trained on packed trees" in record.message
    assert model.config._attn_implementation == "sdpa"


def test_model_with_an_attention_of_its_own_is_trained_on_rows(caplog):
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2)).eval()
    trees = grow(SHAPES["star"])
    auto = TREE.model_copy(update={"packing": "auto"})
    settled, metrics = settle_packing(model, trees, credit(trees, "grpo"), auto, 1.0)
    assert settled.packing == "flat"
    assert metrics["packed"] == 0
    assert "an attention of its own" in caplog.text


def test_model_that_sees_trees_rightly_is_packed_and_the_check_is_made_once(monkeypatch):
    monkeypatch.setattr(self_check, "_known", {})
    model, trees = qwen(), grow(SHAPES["several"])
    auto, terms = TREE.model_copy(update={"packing": "auto"}), credit(trees, "grpo")
    settled, metrics = settle_packing(model, trees, terms, auto, 1.0)
    assert settled.packing == "tree"
    assert 0 <= metrics["packed_difference"] < 1e-5
    monkeypatch.setattr(self_check, "score", None)  # would fail if it were called again
    assert settle_packing(model, trees, terms, auto, 1.0)[0].packing == "tree"


def test_two_packed_updates_are_bit_identical_and_near_the_flat_one(random_policy, tmp_path):
    trees = grow(SHAPES["several"] + SHAPES["bushy"], vocabulary=90)
    for name, update in (("a", TREE), ("b", TREE), ("flat", FLAT)):
        TorchTrainer(update, 1.0).update(trees, random_policy, tmp_path / name, 0)
    hashes = [content_hash(tmp_path / name / "model.safetensors") for name in ("a", "b", "flat")]
    assert hashes[0] == hashes[1] != hashes[2]
    assert content_hash(tmp_path / "a" / "config.json") == content_hash(random_policy / "config.json")


def test_path_longer_than_the_cap_is_named():
    trees = grow(SHAPES["star"])
    capped = TREE.model_copy(update={"max_path_tokens": 5})
    with pytest.raises(UserError, match=r"the path to node \d+ has \d+ tokens .* more than update.max_path_tokens=5"):
        micro_batches(trees, credit(trees, "grpo"), capped)


def test_action_without_a_prompt_before_it_is_refused():
    row = row_of([1, 2], trained=2)
    for make in (collate, pack):
        with pytest.raises(ValueError, match="first token of a path"):
            make([row])


def test_logits_in_chunks_give_the_same_gradient(monkeypatch):
    model, trees = qwen(), grow(SHAPES["several"])
    proximal = near(model, trees, "grpo")
    whole = gradient(model, trees, TREE, proximal)
    monkeypatch.setattr(loss, "LOGITS", 7 * VOCABULARY)
    assert_same(gradient(model, trees, TREE, proximal), whole)


def test_rows_are_built_per_leaf_that_has_terms():
    trees = grow(SHAPES["late branches"])
    rows = build_rows(trees, credit(trees, "treerpo"))
    for row in rows:
        assert trees.nodes[row.leaf].is_terminal
        assert row.weight[-1] > 0  # nothing is computed behind the last trained token
        assert trees.token_ids_T[row.index_T].tolist() == trees.prefix_ids(row.leaf)[: len(row.token_ids)]
