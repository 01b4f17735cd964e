"""The client of vLLM servers, against servers that only act like it: routing, retries, weights, caches, settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.errors import UserError
from components.params.root import compose
from components.policy.engines.base import Request
from components.policy.engines.vllm import Vllm, server
from components.policy.engines.vllm import client as vllm_client
from components.policy.engines.vllm.colocated import ColocatedVllmEngine
from components.policy.engines.vllm.engine import VllmEngine
from components.policy.engines.vllm.launch import ROOT, launch
from components.policy.engines.vllm.params import VllmParams
from components.policy.faults import first_error
from tests.components.policy.engines.fake_vllm import FakeVllm


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeVllm]]:
    monkeypatch.setattr(vllm_client, "FIRST_PAUSE", 0.02)
    made = [FakeVllm() for _ in range(2)]
    yield made
    for fake in made:
        fake.kill()


@pytest.fixture
def policies(tmp_path: Path) -> list[Path]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    return [tmp_path / "first", tmp_path / "second"]


def settings(fakes: list[FakeVllm], **values: object) -> VllmParams:
    known = {"name": "vllm", "servers": [fake.url for fake in fakes], "patience": 0.5, "temperature": 0.6}
    return VllmParams.model_validate(known | values)


@pytest.fixture
def engine(fakes: list[FakeVllm], policies: list[Path]) -> VllmEngine:
    engine = VllmEngine(settings(fakes))
    engine.load(policies[0])
    return engine


def requests(count: int, trees: int = 4) -> list[Request]:
    return [Request([3, 8, 20 + n % trees], seed=n, max_tokens=5, tree=n % trees) for n in range(count)]


def test_trees_are_spread_over_servers_and_each_stays_at_one(engine, fakes):
    engine.generate(requests(16))
    asked = [{tuple(body["token_ids"]) for body in fake.generated} for fake in fakes]
    assert [len(trees) for trees in asked] == [2, 2]
    assert not asked[0] & asked[1]


def test_completions_come_in_the_order_of_their_requests(engine):
    assert [c.token_ids[1] for c in engine.generate(requests(16))] == list(range(16))


def test_c43_every_sampling_field_is_sent_and_neutral(engine, fakes):
    engine.generate(requests(1))
    sent = next(body for fake in fakes for body in fake.generated)["sampling_params"]
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1, "min_tokens": 0}
    neutral |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "temperature": 0.6}
    assert sent.items() >= neutral.items()
    assert (sent["stop_token_ids"], sent["seed"], sent["max_tokens"]) == ([7, 9], 0, 5)


def test_c44_new_weights_leave_no_cache_of_earlier_ones(engine, fakes, policies):
    before = engine.generate(requests(4))
    engine.load(policies[1])
    after = engine.generate(requests(4))
    assert all(a.token_ids[0] != b.token_ids[0] for a, b in zip(before, after, strict=True))
    assert engine.cached_tokens == 0
    engine.generate(requests(4))
    assert (engine.cached_tokens, engine.prompt_tokens) == (8, 24)


def test_c44_a_server_that_keeps_its_cache_is_not_used(engine, fakes, policies):
    fakes[0].drops_cache = False
    engine.load(policies[1])
    engine.generate(requests(8))
    assert not fakes[0].generated
    assert len(fakes[1].generated) == 8


def test_the_same_weights_stay_and_so_do_their_caches(engine, fakes, policies):
    engine.generate(requests(4))
    engine.load(policies[0])
    assert [fake.loads for fake in fakes] == [[str(policies[0])]] * 2
    engine.generate(requests(4))
    assert engine.cached_tokens == 8


def test_a_checkpoint_written_anew_in_the_same_folder_is_loaded_anew(engine, fakes, policies):
    (policies[0] / "model.safetensors").write_text("new")
    engine.load(policies[0])
    assert [len(fake.loads) for fake in fakes] == [2, 2]


@pytest.mark.parametrize("how", ["killed", "failing"])
def test_another_server_takes_over_from_one_that_fails(engine, fakes, how):
    expected = engine.generate(requests(8))
    if how == "killed":
        fakes[0].kill()
    fakes[0].failing = True
    assert engine.generate(requests(8)) == expected
    assert len(fakes[1].generated) >= 8


def test_a_server_that_comes_back_gets_the_weights_first(engine, fakes, policies):
    """A restarted server holds the weights that it was started with: it must not be asked before it has ours."""
    fakes[0].kill()
    expected = engine.generate(requests(8))
    fakes[0].generated.clear()
    fakes[0].restart()
    deadline = time.monotonic() + 10
    while not fakes[0].generated and time.monotonic() < deadline:
        assert engine.generate(requests(8)) == expected
    assert fakes[0].loads == [str(policies[0])] * 2
    assert fakes[0].generated


def test_a_single_server_is_waited_for(fakes, policies):
    engine = VllmEngine(settings(fakes[:1], patience=20))
    engine.load(policies[0])
    fakes[0].kill()
    threading.Timer(0.3, fakes[0].restart).start()
    assert len(engine.generate(requests(4))) == 4


def test_where_no_server_is_left_the_error_names_them_all(engine, fakes):
    for fake in fakes:
        fake.kill()
        fake.failing = True
    with pytest.raises(UserError, match=r"no vLLM server has answered for 0\.5 s") as caught:
        engine.generate(requests(4))
    assert all(fake.url in str(caught.value) for fake in fakes)
    for fake in fakes:
        fake.restart()


@pytest.mark.parametrize(
    ("name", "value"), [("logprobs_mode", "raw_logprobs"), ("enable_prefix_caching", False), ("max_model_len", 64)]
)
def test_a_server_with_other_settings_is_refused(fakes, policies, name, value):
    """Raw log-probabilities leave out the temperature: the trainer's ratios would be wrong from the first step."""
    fakes[1].settings[name] = value
    with pytest.raises(UserError, match=f"{fakes[1].url} has .*{value}.* needs"):
        VllmEngine(settings(fakes)).load(policies[0])


@pytest.mark.parametrize(
    "answer",
    [
        {"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -0.5}]}, "finish_reason": "stop"},
        {"token_ids": [1], "logprobs": {"content": [{"logprob": float("nan")}]}, "finish_reason": "stop"},
        {"token_ids": [1], "logprobs": {"content": [{"logprob": -9999.0}]}, "finish_reason": "stop"},
        {"token_ids": [1], "logprobs": {"content": [{"logprob": -0.5}]}, "finish_reason": "abort"},
    ],
)
def test_c39_a_completion_that_is_not_whole_is_never_trained_on(engine, fakes, answer):
    for fake in fakes:
        fake.spoilt = {"choices": [answer], "usage": {"prompt_tokens": 3}}
    with pytest.raises(UserError, match="attempts of one request failed"):
        engine.generate(requests(1))


def test_no_room_for_a_token_is_an_empty_completion(engine, fakes):
    completion = engine.generate([Request([1, 2], 1, 0)])[0]
    assert (completion.token_ids, completion.stopped) == ([], False)
    assert not any(fake.generated for fake in fakes)


def test_usable_from_several_threads_at_once(engine):
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: engine.generate(requests(32)), range(4)))
    assert results == [results[0]] * 4


def test_the_number_of_servers_decides_where_sampling_happens():
    assert isinstance(Vllm.make(VllmParams(servers=0)), ColocatedVllmEngine)
    assert isinstance(Vllm.make(VllmParams(servers=2)), VllmEngine)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"python": "nowhere/python"}, "engine.python='nowhere/python' is no interpreter; .* make vllm"),
        ({"servers": ["http://127.0.0.1:9"]}, "engine.servers: http://127.0.0.1:9 does not answer"),
        ({"servers": ["nonsense"]}, "engine.servers: nonsense does not answer"),
        ({"servers": 0}, "engine.servers=0 .* cannot be imported"),
        ({"temperature": 0.001}, "engine.temperature=0.001: vLLM samples at 0.01 or above"),
    ],
)
def test_what_cannot_work_is_said_before_a_run_starts(values, message, monkeypatch):
    monkeypatch.setattr("components.policy.engines.vllm.find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        Vllm.check(compose({"engine": {"name": "vllm", **values}, "policy": {"hidden": 128}}))


def test_heads_too_small_for_vllm_are_said_before_a_run_starts():
    with pytest.raises(UserError, match=r"policy\.hidden=64: vLLM needs a multiple of 128"):
        Vllm.check(compose({"engine": {"name": "vllm"}}))


LOG = """\
WARNING 11-30 10:00:00 [importing.py:53] Failed to import kernels: ModuleNotFoundError: No module named 'triton'
INFO 11-30 10:00:01 [core.py:1] the next Error: is none
(EngineCore_DP0 pid=7) ERROR 11-30 10:00:02 [core.py:700] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 11-30 10:00:02 [core.py:700]   File "x.py", line 1, in sample
(EngineCore_DP0 pid=7) ERROR 11-30 10:00:02 [core.py:700] RuntimeError: CPU Generator does not use offset
(APIServer pid=6) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See above.
(APIServer pid=6) RuntimeError: Engine core initialization failed.
shutting down
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (LOG, "RuntimeError: CPU Generator does not use offset"),
        ("[rank1]: torch.OutOfMemoryError: full\n[rank0]: RuntimeError: gone\n", "torch.OutOfMemoryError: full"),
        ("ValueError: no such model\nbye\n", "ValueError: no such model"),
        ("starting\nKilled\n\n", "Killed"),
        ("", "its log is empty"),
    ],
)
def test_first_error_of_a_log_is_its_cause(tmp_path, log, cause):
    (tmp_path / "log").write_text(log)
    assert first_error(tmp_path / "log") == cause


def test_a_server_that_does_not_start_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the log stays for the user to read
    fake = tmp_path / "python"
    (tmp_path / "printed").write_text(LOG)
    fake.write_text(f"#!/bin/sh\ncat {tmp_path}/printed >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(UserError, match="did not start: it ended with code 3: RuntimeError: CPU Generator does"):
        launch(VllmParams(python=str(fake)), tmp_path)


@pytest.mark.parametrize(
    ("cpu", "given", "expected"),
    [
        (True, ["--max-model-len", "16384", "--max-num-seqs", "256"], "16384"),
        (True, ["--max-model-len", "128", "--max-num-seqs", "4000"], "4000"),
        (True, ["--max-model-len", "128"], "2048"),
        (True, [], "8192"),  # as the checkpoint says
        (False, ["--max-model-len", "16384"], None),
    ],
)
def test_prompts_are_prefilled_whole_on_the_cpu(monkeypatch, tmp_path, cpu, given, expected):
    """In parts, with a seed, they end the engine."""
    served: list[list[str]] = []
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: cpu))
    entry = SimpleNamespace(main=lambda: served.append(sys.argv[1:]))
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.launchers", "vllm.entrypoints.launchers.api_server"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.launchers.api_server.entry", entry)
    monkeypatch.setattr(sys, "argv", ["server", "--model", str(tmp_path), *given])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    server.main()
    (flags,) = served
    assert flags[-len(given) - 2 :] == ["--model", str(tmp_path), *given]
    assert ("--no-enable-chunked-prefill" in flags) == cpu
    assert dict(pairwise(flags)).get("--max-num-batched-tokens") == expected


def test_a_server_ends_when_the_run_that_started_it_is_gone():
    """Its standard input closes then, however the run ended."""
    code = "from components.policy.engines.vllm import server; print('up', flush=True); server._stop_with_parent()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(20) == -signal.SIGTERM
