"""Tests with vLLM itself, in an environment of its own: `make test-vllm` sets it up and runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from components.environments.multihop import MultiHop
from components.policy.base import PolicyParams, WarmupParams
from components.policy.checkpoint import load_model, save_model
from components.policy.engines.base import Completion, Request
from components.policy.tiny import build_model, build_tokenizer
from tests.components.policy.forests import plain_logprobs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("TEST_VLLM"):
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs vLLM: make test-vllm"))


def make_policy(folder: Path, seed: int, tied: bool) -> Path:
    """A tiny Qwen3 with random weights, a generation_config.json that bends what is sampled, and a trainer's file."""
    tokenizer = build_tokenizer(MultiHop().vocabulary())
    model = build_model(PolicyParams(hidden=128, warmup=WarmupParams(seed=seed)), tokenizer)
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    save_model(model, folder)
    tokenizer.save_pretrained(folder)
    bent = {"repetition_penalty": 1.5, "top_k": 2, "top_p": 0.5, "temperature": 0.3, "eos_token_id": 5}
    (folder / "generation_config.json").write_text(json.dumps(bent))
    save_file({"lm_head.weight/exp_avg": torch.zeros(2)}, folder / "optimizer.safetensors")
    return folder


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two untied and two tied ones."""
    folder = tmp_path_factory.mktemp("policies")
    kinds = {"a": (0, False), "b": (1, False), "tied_a": (0, True), "tied_b": (1, True)}
    return {name: make_policy(folder / name, *kind) for name, kind in kinds.items()}


def mismatch(policy: Path, requests: list[Request], completions: list[Completion], temperature: float) -> float:
    """Largest difference of the engine's log-probabilities from the trainer's own, in one plain forward pass each."""
    model, worst = load_model(policy).eval(), 0.0
    for request, completion in zip(requests, completions, strict=True):
        sampled = completion.token_ids
        assert sampled
        expected = plain_logprobs(model, request.token_ids, sampled, temperature).numpy()
        worst = max(worst, float(np.abs(expected - np.array(completion.logprobs)).max()))
    return worst


def histories(count: int, siblings: int = 1) -> list[Request]:
    """Histories of 40 tokens and more; each of `count` trees is asked for `siblings` times."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(6, 60, size=40 + tree).tolist() for tree in range(count)]
    return [Request(ids[t], 1000 * t + s, 12, tree=t) for t in range(count) for s in range(siblings)]
