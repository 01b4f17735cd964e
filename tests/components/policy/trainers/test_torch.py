"""The torch trainer against flat references, and the faults that users of its peers met."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from components.policy.checkpoint import load_model
from components.policy.engines.base import Request
from components.policy.engines.transformers.engine import TransformersEngine
from components.policy.engines.transformers.params import TransformersParams
from components.policy.packing.batches import build_rows, collate
from components.policy.packing.rows import Row
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import clipped_loss, term_logprobs
from components.policy.trainers.torch.trainer import TorchTrainer
from components.storage import content_hash
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from tests.components.policy import forests
from tests.components.policy.forests import forest, tree, with_policy_logprobs

SETTINGS = UpdateParams(advantage="grpo", epochs=1, minibatches=1)


def path_of(token_ids: list[int], old_logprob: list[float]) -> Row:
    """A path whose tokens with an old log-probability are trained."""
    old = np.array(old_logprob)
    return Row(np.array(token_ids), old, np.ones(len(old)), (old != 0) / 2, np.arange(len(old)), 0)


def gradient(policy: Path, trees: Forest) -> torch.Tensor:
    return forests.gradient(load_model(policy), trees, SETTINGS.model_copy(update={"packing": "flat"}), temperature=1.0)


def flat_gradient(policy: Path, trees: Forest) -> torch.Tensor:
    """The same loss written out leaf by leaf, one plain forward pass each, over group-normalised advantages."""
    model = load_model(policy)
    loss, mixed = torch.zeros(()), []
    for index in np.unique(trees.tree_N):
        leaves = [r for r in trees.scored_L if trees.tree_N[r] == index]
        rewards = trees.reward_N[leaves]
        if len(leaves) > 1 and np.ptp(rewards) > 0:
            mixed += [(leaf, (r - rewards.mean()) / rewards.std()) for leaf, r in zip(leaves, rewards, strict=True)]
    for leaf, advantage in mixed:
        nodes = [trees.nodes[i] for i in trees.path(leaf)]
        ids = torch.tensor([[t for n in nodes for t in n.token_ids]])
        acted = torch.tensor([a for n in nodes for a in n.is_action])
        old = torch.tensor([x for n in nodes for x in n.logprobs])
        new = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        ratio = torch.exp(new[acted[1:]] - old[1:][acted[1:]])
        clipped = ratio.clamp(1 - SETTINGS.clip_low, 1 + SETTINGS.clip_high)
        loss = loss - torch.minimum(ratio * advantage, clipped * advantage).mean() / len(mixed)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("exact", [True, False], ids=["on policy", "ratios far from 1"])
def test_gradient_equals_the_flat_one(random_policy, exact):
    trees = forest([1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    if exact:
        trees = with_policy_logprobs(trees, random_policy)
    expected = flat_gradient(random_policy, trees)
    torch.testing.assert_close(gradient(random_policy, trees), expected, atol=1e-6, rtol=1e-4)


def test_dead_groups_leave_numerator_and_denominator(random_policy):
    alive = forest([1.0, 0.0, 0.0, 1.0])
    among = Forest(alive.nodes + [n for i, r in enumerate(([1.0] * 4, [0.0] * 4, [0.4] * 4), 1)
                                  for n in tree(list(r), i, len(alive) + (i - 1) * 9)])  # fmt: skip
    torch.testing.assert_close(gradient(random_policy, among), gradient(random_policy, alive))


def test_unscored_member_is_masked_and_does_not_poison_its_group(random_policy):
    some = forest([1.0, None, 0.0, 0.0])
    without = Forest([replace(n) for n in forest([1.0, None, 0.0, 0.0]).nodes])
    grads = gradient(random_policy, some)
    assert torch.isfinite(grads).all()
    torch.testing.assert_close(grads, flat_gradient(random_policy, without), atol=1e-6, rtol=1e-4)


def test_nothing_to_learn_is_no_step_and_no_crash(random_policy, tmp_path):
    update = TorchTrainer(SETTINGS, 1.0).update(forest([1.0, 1.0], [0.0, 0.0]), random_policy, tmp_path / "next", 0)
    assert update.metrics["optimizer_steps"] == 0
    assert content_hash(tmp_path / "next" / "model.safetensors") == content_hash(random_policy / "model.safetensors")


def test_observations_carry_no_gradient(random_policy):
    """Changing what would be predicted at observation positions must not matter: only sampled tokens have terms."""
    rows = build_rows(forest([1.0, 0.0]), terms_of(forest([1.0, 0.0]), "grpo"))
    trained = sum(w > 0 for row in rows for w in row.weight)
    assert trained == 2 * 2 * 5
    for row in rows:
        assert len(row.token_ids) == len(row.weight) == len(row.advantage) == len(row.old_logprob)
        assert not row.weight[:4].any()  # the prompt
        assert not row.weight[9:12].any()  # the observation


def test_every_action_token_of_every_turn_carries_its_own_advantage():
    trees = forest([1.0, 0.0], turns=3)
    for row in build_rows(trees, terms_of(trees, "grpo")):
        values = {a for a, w in zip(row.advantage, row.weight, strict=True) if w}
        assert len(values) == 1
        assert abs(values.pop()) == pytest.approx(1.0)


def test_the_first_sampled_token_is_trained():
    trees = forest([1.0, 0.0], turns=1)
    row = build_rows(trees, terms_of(trees, "grpo"))[0]
    assert [i for i, w in enumerate(row.weight) if w] == [4, 5, 6, 7, 8]


def test_end_of_turn_token_is_trained_even_where_it_is_the_padding_token(random_policy):
    """Masks go by position, never by token value."""
    model = load_model(random_policy)
    row, longer = path_of([3, 8, 1], [0, -1, -1]), path_of([3, 8, 9, 10, 1], [0, -1, -1, -1, -1])
    assert len(term_logprobs(model, collate([row, longer]), 1.0)) == 6


def test_shared_prefix_has_one_clipped_term_per_leaf():
    """Ratio 1.3, clip 0.2, advantages +1 and -0.5: 0.55 over the branches; summing first would give 0.60."""
    logprob, old = torch.log(torch.tensor([1.3, 1.3])), torch.zeros(2)
    loss = clipped_loss(logprob, old, torch.tensor([1.0, -0.5]), torch.ones(2), 0.2, 0.2)
    assert float(loss) == pytest.approx(-0.55)


def test_temperature_is_applied_as_in_sampling(random_policy):
    """A trainer that forgets it sees ratios far from 1 on its own policy's samples."""
    engine = TransformersEngine(TransformersParams(temperature=0.6))
    engine.load(random_policy)
    history = [3, 8, 20, 9, 60, 4]
    sampled = engine.generate([Request(history, 1, 10)])[0]
    row = path_of(history + sampled.token_ids, [0.0] * 6 + sampled.logprobs)
    batch, model = collate([row]), load_model(random_policy)
    ratio = (term_logprobs(model, batch, 0.6) - batch.old_logprob_K).exp()
    np.testing.assert_allclose(ratio.detach(), 1.0, atol=1e-4)
    assert (term_logprobs(model, batch, 1.0) - batch.old_logprob_K).exp().mean() < 0.95


@pytest.mark.parametrize("minibatches", [1, 2, 4])
def test_unequal_trees_give_the_asked_number_of_steps(random_policy, tmp_path, minibatches):
    trees = forest([1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0, 1.0], [0.0, 1.0])
    settings = SETTINGS.model_copy(update={"minibatches": minibatches, "epochs": 2})
    update = TorchTrainer(settings, 1.0).update(trees, random_policy, tmp_path / "next", 0)
    assert update.metrics["optimizer_steps"] == 2 * minibatches


def test_micro_batches_do_not_change_the_step(random_policy, tmp_path):
    trees = forest([1.0, 0.0, 1.0], [0.0, 1.0])
    for tokens in (20, 10_000):
        settings = SETTINGS.model_copy(update={"micro_batch_tokens": tokens})
        TorchTrainer(settings, 1.0).update(trees, random_policy, tmp_path / str(tokens), 0)
    a, b = (load_model(tmp_path / name).state_dict() for name in ("20", "10000"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=2e-5, rtol=0)


def test_adam_goes_on_where_the_checkpoint_stood(random_policy, tmp_path):
    """Two steps in one go equal two updates with a checkpoint between them."""
    trees = forest([1.0, 0.0, 1.0])
    twice = SETTINGS.model_copy(update={"epochs": 2})
    TorchTrainer(twice, 1.0).update(trees, random_policy, tmp_path / "both", 0)
    TorchTrainer(SETTINGS, 1.0).update(trees, random_policy, tmp_path / "one", 0)
    TorchTrainer(SETTINGS, 1.0).update(trees, tmp_path / "one", tmp_path / "two", 0)
    a, b = (load_model(tmp_path / name).state_dict() for name in ("both", "two"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_optimiser_state_of_another_run_can_be_left_unread(random_policy, tmp_path):
    trees = forest([1.0, 0.0, 1.0])
    TorchTrainer(SETTINGS, 1.0).update(trees, random_policy, tmp_path / "one", 0)
    for name, fresh in (("goes-on", False), ("fresh", True)):
        TorchTrainer(SETTINGS, 1.0).update(trees, tmp_path / "one", tmp_path / name, 0, fresh=fresh)
    steps = [load_file(tmp_path / name / "optimizer.safetensors") for name in ("goes-on", "fresh")]
    assert [int(next(v for k, v in s.items() if k.endswith("/step"))) for s in steps] == [2, 1]


def test_no_dropout_in_the_update(random_policy, tmp_path):
    """The sampling policy had none: with it, the first ratios would be far from 1."""
    shutil.copytree(random_policy, tmp_path / "p")
    config = json.loads((tmp_path / "p" / "config.json").read_text())
    (tmp_path / "p" / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    trees = with_policy_logprobs(forest([1.0, 0.0]), random_policy)
    update = TorchTrainer(SETTINGS, 1.0).update(trees, tmp_path / "p", tmp_path / "next", 0)
    assert update.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert update.metrics["kl"] == pytest.approx(0.0, abs=1e-5)


def test_step_raises_the_chance_of_what_succeeded(random_policy, tmp_path):
    trees = with_policy_logprobs(forest([1.0, 0.0]), random_policy)
    settings = SETTINGS.model_copy(update={"learning_rate": 1e-3})
    TorchTrainer(settings, 1.0).update(trees, random_policy, tmp_path / "next", 0)
    after = with_policy_logprobs(trees, tmp_path / "next")

    def total(f: Forest, leaf: int) -> float:
        return float(sum(np.nansum(f.nodes[i].logprobs) for i in f.path(leaf)))

    success, failure = trees.scored_L
    assert total(after, success) > total(trees, success)
    assert total(after, failure) < total(trees, failure)


def test_non_finite_loss_stops_loudly_and_writes_nothing(random_policy, tmp_path):
    trees = forest([1.0, 0.0])
    trees.nodes[1].logprobs[0] = float("-inf")
    with pytest.raises(FloatingPointError, match="not finite"):
        TorchTrainer(SETTINGS, 1.0).update(trees, random_policy, tmp_path / "next", 0)
    assert not (tmp_path / "next").exists()


def test_advantages_are_handed_back_per_node(random_policy, tmp_path):
    trees = forest([1.0, 0.0])
    update = TorchTrainer(SETTINGS, 1.0).update(trees, random_policy, tmp_path / "next", 0)
    assert np.isnan(update.advantage_N[0])
    assert update.advantage_N[1] == pytest.approx(1.0)
    assert update.advantage_N[3] == pytest.approx(-1.0)
