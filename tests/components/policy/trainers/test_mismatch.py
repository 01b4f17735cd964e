"""Engine against trainer: what is measured, and the truncated weights that correct it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from components.policy.engines.base import Request
from components.policy.engines.transformers.engine import TransformersEngine
from components.policy.engines.transformers.params import TransformersParams
from components.policy.packing.batches import collate, micro_batches
from components.policy.trainers.loss import Stats, ratio_stats, term_logprobs
from components.policy.trainers.mismatch import measure_mismatch
from components.policy.trainers.torch.trainer import TorchTrainer
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from tests.components.policy.forests import FLAT, SHAPES, TREE, gradient, grow, near, qwen, row_of


def sampled(policy, trees: Forest, temperature: float) -> Forest:
    """The forest's turns sampled anew by the embedded engine, so that its log-probabilities are the engine's."""
    engine = TransformersEngine(TransformersParams(temperature=temperature))
    engine.load(policy)
    for node in trees.nodes[1:]:
        history = [t for row in trees.path(node.parent_id) for t in trees.nodes[row].token_ids]
        (turn,) = engine.generate([Request(history, node.node_id, sum(node.is_action))])
        seen = [t for t, acted in zip(node.token_ids, node.is_action, strict=True) if not acted]
        node.token_ids = turn.token_ids + seen
        node.is_action = [True] * len(turn.token_ids) + [False] * len(seen)
        node.logprobs = turn.logprobs + [math.nan] * len(seen)
    return Forest(trees.nodes)


@pytest.mark.parametrize("packing", ["tree", "flat"])
def test_c41_first_ratios_are_1_at_a_temperature_of_0_6(random_policy, tmp_path, packing):
    trees = sampled(random_policy, grow(SHAPES["late branches"], vocabulary=90), 0.6)
    one = TREE.model_copy(update={"epochs": 1, "minibatches": 1, "packing": packing})
    right = TorchTrainer(one, 0.6).update(trees, random_policy, tmp_path / "right", 0).metrics
    assert right["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert right["mismatch_kl"] < 1e-8
    assert right["mismatch_max"] < 1e-4
    wrong = TorchTrainer(one, 1.0).update(trees, random_policy, tmp_path / "wrong", 0).metrics
    assert wrong["mismatch_kl"] > 1e-3


def test_mismatch_is_that_of_the_weights_that_sampled(random_policy, tmp_path):
    """Later steps move away from them on purpose, and must not be counted."""
    trees = sampled(random_policy, grow(SHAPES["late branches"], vocabulary=90), 1.0)
    steps = TREE.model_copy(update={"epochs": 4, "learning_rate": 0.05})
    metrics = TorchTrainer(steps, 1.0).update(trees, random_policy, tmp_path / "next", 0).metrics
    assert metrics["kl"] > 1e-2
    assert metrics["mismatch_kl"] < 1e-8


def test_c45_ratio_of_a_path_grows_with_its_length_and_those_of_tokens_do_not():
    batch = collate([row_of([3] * 101, trained=100), row_of([4] * 101, trained=100)])
    stats = ratio_stats(torch.full((200,), 0.012), batch, TREE)
    assert stats.mismatch()["mismatch_ratio"] == pytest.approx(math.exp(0.012), rel=1e-4)
    assert stats.mismatch()["mismatch_path_ratio"] == pytest.approx(math.exp(1.2), rel=1e-4)  # 3.3
    assert stats.mismatch()["mismatch_max"] == pytest.approx(0.012, rel=1e-4)
    assert stats.clipped == 0


def test_mismatch_of_batches_adds_up():
    one, two = collate([row_of([3] * 11, trained=10)]), collate([row_of([4] * 5, trained=4)])
    a, b = ratio_stats(torch.full((10,), 0.1), one, TREE), ratio_stats(torch.full((4,), -0.3), two, TREE)
    both = collate([row_of([3] * 11, trained=10), row_of([4] * 5, trained=4)])
    together = ratio_stats(torch.tensor([0.1] * 10 + [-0.3] * 4), both, TREE).mismatch()
    assert (a + b).mismatch() == pytest.approx(together, rel=1e-5)
    assert sum([b, a], Stats()).log_ratio_max == pytest.approx(0.3)


@pytest.mark.parametrize("packing", ["tree", "flat"])
def test_truncated_weights_are_the_trainers_over_the_engines_and_ratios_start_at_1(packing):
    model, trees = qwen(), grow(SHAPES["several"], seed=3)
    terms = terms_of(trees, "grpo")
    engine_T = near(model, trees, "grpo").logprob_T
    for node, first in zip(trees.nodes, trees.first_N, strict=True):
        node.logprobs = [engine_T[first + i] if acted else math.nan for i, acted in enumerate(node.is_action)]
    trees = Forest(trees.nodes)
    capped = TREE.model_copy(update={"importance_cap": 1.2, "packing": packing})
    proximal, metrics = measure_mismatch(model, trees, terms, capped, 0.8)
    assert proximal is not None
    plain, weighted = (
        torch.cat([batch.weight_K for batch in micro_batches(trees, terms, capped, given)]).numpy()
        for given in (None, proximal)
    )
    weights = []
    for batch in micro_batches(trees, terms, capped):
        with torch.no_grad():
            delta = term_logprobs(model, batch, 0.8) - batch.old_logprob_K
        weights.append(delta.exp().clamp(max=1.2).numpy())
    assert np.ptp(np.concatenate(weights)) > 0.3
    np.testing.assert_allclose(weighted, plain * np.concatenate(weights), rtol=1e-4)
    for batch in micro_batches(trees, terms, capped, proximal):
        torch.testing.assert_close(term_logprobs(model, batch, 0.8), batch.old_logprob_K, atol=1e-5, rtol=0)
    assert 0.1 < metrics["importance_capped"] < 0.9
    assert 0.8 < metrics["importance_weight"] < 1.2
    assert metrics["mismatch_max"] == pytest.approx(0.47, abs=0.05)


def test_without_a_cap_nothing_is_computed():
    trees = grow(SHAPES["star"])
    assert measure_mismatch(None, trees, terms_of(trees, "grpo"), TREE, 1.0) == (None, {})


def test_token_that_the_trainer_deems_impossible_stays_in_the_batch():
    model, trees = qwen(), grow(SHAPES["star"])
    trees.nodes[1].logprobs[0] = 2000.0  # no probability, but what a broken engine might hand over
    trees = Forest(trees.nodes)
    capped = FLAT.model_copy(update={"importance_cap": 2.0})
    proximal, _ = measure_mismatch(model, trees, terms_of(trees, "grpo"), capped, 1.0)
    assert torch.isfinite(gradient(model, trees, capped, proximal)).all()
