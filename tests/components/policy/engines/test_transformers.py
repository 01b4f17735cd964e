"""The embedded engine: exact log-probabilities, seeds, limits, and what the cache may and may not do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from components.errors import UserError
from components.policy.checkpoint import load_model, save_model, shared_model
from components.policy.engines.base import Completion, Request
from components.policy.engines.transformers.engine import TransformersEngine, uniform
from components.policy.engines.transformers.params import TransformersParams
from tests.components.policy.forests import plain_logprobs

PROMPTS = [[3, 8, 20, 9, 60, 4], [3, 8, 21, 9, 8, 22, 9, 61, 4]]


@pytest.fixture
def engine(random_policy: Path) -> TransformersEngine:
    engine = TransformersEngine(TransformersParams())
    engine.load(random_policy)
    return engine


def assert_exact(
    policy: Path, requests: list[Request], completions: list[Completion], temperature: float = 1.0
) -> None:
    """The engine's log-probabilities are those of plain forward passes."""
    model = load_model(policy).eval()
    for request, completion in zip(requests, completions, strict=True):
        expected = plain_logprobs(model, request.token_ids, completion.token_ids, temperature).numpy()
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)


def test_logprobs_equal_a_flat_forward_pass_for_histories_of_different_lengths(engine, random_policy):
    requests = [Request(p, seed, 12) for p in PROMPTS for seed in (1, 2)]
    assert_exact(random_policy, requests, engine.generate(requests))


def test_logprobs_belong_to_the_tempered_distribution(random_policy):
    engine = TransformersEngine(TransformersParams(temperature=0.6))
    engine.load(random_policy)
    requests = [Request(PROMPTS[0], 5, 12)]
    assert_exact(random_policy, requests, engine.generate(requests), temperature=0.6)


def test_next_turn_and_branches_reuse_the_cache_and_stay_exact(engine, random_policy):
    first = [Request(p, seed, 6) for p in PROMPTS for seed in (1, 2)]
    turns = engine.generate(first)
    going_on = [
        Request(r.token_ids + c.token_ids + [5, 90, 1, 4], r.seed + 10, 6) for r, c in zip(first, turns, strict=True)
    ]
    branches = [Request(going_on[0].token_ids, seed, 6) for seed in (20, 21, 22)]
    before = engine.cached_tokens
    completions = engine.generate(going_on + branches)
    assert engine.cached_tokens - before >= sum(len(r.token_ids) - 5 for r in going_on)
    assert_exact(random_policy, going_on + branches, completions)


def test_a_seed_decides_the_sample_whatever_else_is_in_the_batch(engine):
    alone = engine.generate([Request(PROMPTS[0], 7, 10)])[0]
    among = engine.generate([Request(PROMPTS[1], 1, 10), Request(PROMPTS[0], 7, 10), Request(PROMPTS[0], 8, 10)])
    assert among[1].token_ids == alone.token_ids
    assert among[2].token_ids != alone.token_ids


def test_siblings_with_seeds_of_their_own_differ(engine):
    samples = engine.generate([Request(PROMPTS[0], seed, 10) for seed in range(16)])
    assert len({tuple(s.token_ids) for s in samples}) == 16


def test_sampling_frequencies_follow_the_distribution(engine, random_policy):
    draws = 4000
    tokens = [c.token_ids[0] for c in engine.generate([Request(PROMPTS[0], seed * 7919, 1) for seed in range(draws)])]
    with torch.inference_mode():
        expected = torch.softmax(load_model(random_policy)(torch.tensor([PROMPTS[0]])).logits[0, -1], -1).numpy()
    observed = np.bincount(tokens, minlength=len(expected)) / draws
    assert np.abs(observed - expected).max() < 4.5 * np.sqrt(expected.max() / draws)


def test_turn_ends_at_the_end_token_or_at_its_own_limit(engine):
    eos = engine.model.config.eos_token_id
    completions = engine.generate([Request(PROMPTS[0], seed, limit) for seed in range(40) for limit in (1, 30)])
    assert all(len(c.token_ids) == 1 for c in completions[::2])
    for c in completions:
        assert c.stopped == (c.token_ids[-1] == eos)
        assert eos not in c.token_ids[:-1]
    assert any(c.stopped for c in completions)


def test_new_weights_drop_the_cache(engine, random_policy, tmp_path):
    """Stale keys after a weight update are a silent fault of several peers."""
    first = Request(PROMPTS[0], 1, 6)
    turn = engine.generate([first])[0]
    other = tmp_path / "other"
    shutil.copytree(random_policy, other)
    model = load_model(random_policy)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_model(model, other)
    engine.load(other)
    request = Request(first.token_ids + turn.token_ids + [5, 90, 1, 4], 3, 6)
    assert_exact(other, [request], engine.generate([request]))


def test_branches_from_prefixes_of_earlier_calls_compute_nothing_but_their_last_token(engine, random_policy):
    """Stage 2 starts from prefixes that were sampled several calls ago."""
    history, prefixes = PROMPTS[0], []
    for turn in range(3):
        sampled = engine.generate([Request(history, turn, 5), Request(PROMPTS[1], turn, 4)])[0]
        history = history + sampled.token_ids + [5, 90, 1, 4]
        prefixes.append(history)
    requests = [Request(prefix, seed, 5) for prefix in prefixes[:2] for seed in (11, 12)]
    prompt, cached = engine.prompt_tokens, engine.cached_tokens
    completions = engine.generate(requests)
    assert (engine.prompt_tokens - prompt) - (engine.cached_tokens - cached) == len(requests)
    assert_exact(random_policy, requests, completions)


def test_a_tree_of_new_histories_is_computed_once(engine, random_policy):
    chain = [int(x) for x in np.random.default_rng(0).integers(5, 60, 40)]
    histories = [chain[:20], chain, chain, [*chain[:30], 7, 7, 7], [*chain[:30], 7, 9], [9] * 5]
    requests = [Request(h, seed, 6) for seed, h in enumerate(histories)]
    completions = engine.generate(requests)
    unique = {tuple(h[: i + 1]) for h in histories for i in range(len(h) - 1)}
    assert engine.prompt_tokens - engine.cached_tokens == len(unique) + len(requests)
    assert_exact(random_policy, requests, completions)


@pytest.mark.parametrize("keep", [False, True])
def test_loading_the_same_weights_keeps_the_model_and_only_if_asked_the_prefixes(random_policy, tmp_path, keep):
    engine = TransformersEngine(TransformersParams(keep_prefixes=keep))
    engine.load(random_policy)
    model, request = engine.model, Request(PROMPTS[0] * 5, 1, 4)
    engine.generate([request])
    shutil.copytree(random_policy, tmp_path / "moved")
    engine.load(tmp_path / "moved")
    assert engine.model is model
    assert engine.prompt_tokens == 0
    again = engine.generate([request])
    assert engine.cached_tokens == (len(request.token_ids) - 1 if keep else 0)
    assert_exact(random_policy, [request], again)


def test_a_stage_that_runs_again_repeats_every_bit(random_policy):
    """After a kill it meets an empty cache, though in the first run stages before it have filled one."""
    requests = [Request(p * 3, seed, 10) for p in PROMPTS for seed in range(5)]
    engine = TransformersEngine(TransformersParams())
    engine.load(random_policy)
    engine.generate([Request(r.token_ids[:7], 3, 8) for r in requests])
    engine.load(random_policy)
    first = engine.generate(requests)
    fresh = TransformersEngine(TransformersParams())
    fresh.load(random_policy)
    assert fresh.generate(requests) == first


def test_memory_for_keys_and_values_is_bounded(random_policy):
    """Long and short histories, and room for a fraction of them: several batches, a full cache, the same samples."""
    rng = np.random.default_rng(0)
    requests = [Request(rng.integers(5, 60, n).tolist(), n, 8) for n in (5, 40, 300, 90, 6, 41, 299)]
    wide = TransformersEngine(TransformersParams())
    narrow = TransformersEngine(TransformersParams(cache_gb=330 * 512 / 1e9))
    wide.load(random_policy)
    narrow.load(random_policy)
    expected, found = wide.generate(requests), narrow.generate(requests)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert len(narrow._cache.pool) <= 330 < len(wide._cache.pool)
    assert_exact(random_policy, requests, found)


def test_rows_that_have_ended_are_not_computed(engine, monkeypatch):
    widths: list[int] = []
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda b, t, p: (widths.append(len(t)), step(b, t, p))[1])
    engine.generate([Request(PROMPTS[0], seed, 1 if seed < 12 else 6) for seed in range(16)])
    assert widths[0] == 16
    assert max(widths[1:]) <= 4


def test_readers_share_one_model_and_new_content_replaces_it(random_policy, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(random_policy, folder)
    assert shared_model(folder) is shared_model(random_policy)
    own = load_model(folder)
    assert own is not shared_model(folder)
    assert own.lm_head.weight.requires_grad
    assert not shared_model(folder).lm_head.weight.requires_grad
    with torch.no_grad():
        own.lm_head.weight.add_(1.0)
    save_model(own, folder)
    assert torch.equal(shared_model(folder).lm_head.weight, own.lm_head.weight)


def test_generation_config_of_the_checkpoint_is_not_applied(random_policy, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(random_policy, folder)
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1.5, "top_k": 2, "temperature": 0.1}')
    engine = TransformersEngine(TransformersParams())
    engine.load(folder)
    requests = [Request(PROMPTS[0], seed, 10) for seed in range(4)]
    assert_exact(random_policy, requests, engine.generate(requests))


@pytest.mark.parametrize("damage", ["missing", "truncated", "not json"])
def test_damaged_checkpoint_is_one_clear_error(random_policy, tmp_path, damage):
    folder = tmp_path / "policy"
    if damage != "missing":
        shutil.copytree(random_policy, folder)
    if damage == "truncated":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    if damage == "not json":
        (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=str(folder)):
        TransformersEngine(TransformersParams()).load(folder)


@pytest.mark.parametrize(
    "change", [{"layer_types": ["full_attention", "sliding_attention"]}, {"final_logit_softcapping": 30.0}]
)
def test_checkpoint_that_would_not_be_sampled_exactly_is_refused(random_policy, tmp_path, change):
    folder = tmp_path / "policy"
    shutil.copytree(random_policy, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=r"config\.json"):
        load_model(folder)


def test_uniform_numbers_are_uniform_and_depend_on_seed_and_step():
    u = uniform(np.arange(2000), 50)
    assert ((u >= 0) & (u < 1)).all()
    assert len(np.unique(u)) == u.size
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert np.abs(counts - u.size / 20).max() < 5 * np.sqrt(u.size / 20)
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.1
