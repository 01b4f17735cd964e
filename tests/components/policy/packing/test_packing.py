"""Packed trees against flat rows: the same log-probabilities and gradients, each shared token once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.errors import UserError
from components.policy.packing import tree_attention
from components.policy.packing.batches import Proximal, build_rows, collate, micro_batches, pack
from components.policy.packing.rows import layout, split
from components.policy.trainers import loss
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import term_logprobs
from components.policy.trainers.torch.trainer import TorchTrainer
from components.storage import content_hash
from components.tree.advantages import ADVANTAGES, terms_of
from components.tree.forest import Forest
from tests.components.policy.forests import (
    FLAT,
    SHAPES,
    TREE,
    VOCABULARY,
    assert_same,
    gradient,
    grow,
    near,
    plain_logprobs,
    qwen,
    row_of,
)

MANY = grow(SHAPES["several"] + SHAPES["late branches"], seed=1)


def reference_gradient(model, trees: Forest, update: UpdateParams, proximal: Proximal, temperature: float = 0.8):
    """The loss as the method writes it, term by term, with a forward pass for each."""
    model.zero_grad(set_to_none=True)
    model.set_attn_implementation("sdpa")
    terms, total = terms_of(trees, update.advantage), torch.zeros(())
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ADVANTAGES)
def test_gradient_of_packed_trees_equals_the_one_written_out_term_by_term(monkeypatch, shape, kind):
    monkeypatch.setattr(tree_attention, "BLOCK", 16)
    model, trees = qwen(), grow(SHAPES[shape], seed=3)
    proximal, update = near(model, trees, kind), TREE.model_copy(update={"advantage": kind})
    assert_same(gradient(model, trees, update, proximal), reference_gradient(model, trees, update, proximal))


def test_terms_of_these_tests_are_clipped_on_both_sides_and_carry_both_signs():
    """The equalities here would show nothing if no ratio left the clip range."""
    model, trees = qwen(), grow(SHAPES["several"], seed=3)
    (batch,) = micro_batches(trees, terms_of(trees, "grpo"), TREE, near(model, trees, "grpo"))
    ratio = torch.exp(term_logprobs(model, batch, 0.8) - batch.old_logprob_K)
    for sign in (-1, 1):
        ours = ratio[batch.advantage_K * sign > 0]
        assert (ours < 0.8).any()
        assert (ours > 1.28).any()
        assert ((ours > 0.8) & (ours < 1.28)).any()


@st.composite
def forests(draw) -> Forest:
    def tree() -> list[int]:
        return [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, 9)))]

    trees = [tree() for _ in range(draw(st.integers(1, 4)))]
    return grow([*trees, [-1, -1]], draw(st.integers(0, 99)), draw(st.sampled_from([2, VOCABULARY])))


@settings(max_examples=15, deadline=None)
@example(MANY, "grpo", 12, 32, loss.LOGITS, True)
@example(MANY, "grpo", 60, 32, 7 * VOCABULARY, False)
@given(
    forests(),
    st.sampled_from(list(ADVANTAGES)),
    st.integers(5, 80),
    st.sampled_from([4, 32]),
    st.sampled_from([7 * VOCABULARY, loss.LOGITS]),
    st.booleans(),
)
def test_any_forest_has_the_same_gradient_packed_and_flat(trees, kind, tokens, block, logits, tied):
    """In parts, blocks and chunks of any size. A vocabulary of two makes siblings, and trees, begin alike."""
    model, changed = qwen(tied, layers=1), {"advantage": kind, "micro_batch_tokens": tokens}
    packed, flat = (update.model_copy(update=changed) for update in (TREE, FLAT))
    proximal = near(model, trees, kind)
    theirs = gradient(model, trees, flat, proximal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "BLOCK", block)
        patch.setattr(loss, "LOGITS", logits)
        ours = gradient(model, trees, packed, proximal)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max() + 1e-9


def test_c69_first_token_of_a_child_is_predicted_from_its_parents_last_position():
    """A-B-{C-D, E}: each leaf's log-probabilities are those of a plain forward pass."""
    model, paths = qwen(), [[1, 2, 3, 4], [1, 2, 5]]
    rows = split([row_of(path, len(path) - 1) for path in paths], 100)[0]
    batch = pack(rows)
    logprob = term_logprobs(model, batch, 1.0)
    for index, path in enumerate(paths):
        plain = plain_logprobs(model, path[:1], path[1:])
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


def test_two_packed_updates_are_bit_identical(random_policy, tmp_path):
    trees = grow(SHAPES["several"] + SHAPES["bushy"], vocabulary=90)
    for name, update in (("a", TREE), ("b", TREE), ("flat", FLAT)):
        TorchTrainer(update, 1.0).update(trees, random_policy, tmp_path / name, 0)
    hashes = [content_hash(tmp_path / name / "model.safetensors") for name in ("a", "b", "flat")]
    assert hashes[0] == hashes[1] != hashes[2]  # the last: trees were packed
    assert content_hash(tmp_path / "a" / "config.json") == content_hash(random_policy / "config.json")


def test_path_longer_than_the_cap_is_named():
    trees = grow(SHAPES["star"])
    capped = TREE.model_copy(update={"max_path_tokens": 5})
    with pytest.raises(UserError, match=r"the path to node \d+ has \d+ tokens .* more than update.max_path_tokens=5"):
        micro_batches(trees, terms_of(trees, "grpo"), capped)


def test_action_without_a_prompt_before_it_is_refused():
    row = row_of([1, 2], trained=2)
    for make in (collate, pack):
        with pytest.raises(ValueError, match="first token of a path"):
            make([row])


def test_rows_are_built_per_leaf_that_has_terms():
    trees = grow(SHAPES["late branches"])
    rows = build_rows(trees, terms_of(trees, "treerpo"))
    for row in rows:
        assert trees.nodes[row.leaf].is_terminal
        assert row.weight[-1] > 0  # nothing is computed after the last trained token
        assert trees.token_ids_T[row.index_T].tolist() == trees.prefix_ids(row.leaf)[: len(row.token_ids)]
