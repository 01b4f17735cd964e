"""vLLM inside this process: exact log-probabilities, also after a reload, and also where the head is tied."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from components.policy.engines.vllm.colocated import ColocatedVllmEngine
from components.policy.engines.vllm.params import VllmParams
from tests.vllm.conftest import histories, mismatch

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM in this environment: make test-vllm")


@pytest.mark.parametrize("kind", ["", "tied_"])
def test_c43_c44_logprobs_belong_to_the_loaded_weights_and_to_nothing_else(policies: dict[str, Path], kind: str):
    """Four reloads; a tied head that kept its first weights, a stale cache or a penalty would be off by far more."""
    requests = histories(4, siblings=2)
    engine = ColocatedVllmEngine(VllmParams(servers=0, temperature=0.6, batch_size=8))
    samples = {}
    for name in ("a", "b", "b", "a"):
        policy = policies[kind + name]
        engine.load(policy)
        completions = engine.generate(requests)
        assert mismatch(policy, requests, completions, 0.6) < 1e-4
        assert samples.setdefault(name, completions) == completions  # the same seeds and weights
    assert samples["a"] != samples["b"]
    assert len({tuple(c.token_ids) for c in samples["a"]}) == len(requests)
    assert engine.cached_tokens > 0
