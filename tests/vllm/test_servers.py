"""Two vLLM servers that a run starts, behind one client: exactness, seeds, reloads, caches, losses of servers.

Named in the order in which they run: the last tests kill the servers.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.environments.multihop import MultiHop, make_prompt
from components.errors import UserError
from components.params.root import Params
from components.policy.engines.base import Request
from components.policy.engines.vllm.engine import VllmEngine
from components.policy.engines.vllm.params import VllmParams
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.tree.schema import Status
from tasks.inputs import read_forest
from tests.tasks.pipeline import new_run, train
from tests.vllm.conftest import histories, mismatch

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def started(policies: dict[str, Path]) -> Iterator[VllmEngine]:
    """An engine with two servers of its own, each started with the policy `a`."""
    engine = VllmEngine(VllmParams(servers=2, temperature=0.6, batch_size=32, patience=2))
    engine.load(policies["a"])
    yield engine
    engine.close()


def servers(engine: VllmEngine) -> tuple[str, ...]:
    return tuple(server.url for server in engine._pool.servers)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_logprobs_are_the_trainers_at_the_sampling_temperature(started, policies, temperature):
    """Raw ones, or those bent by generation_config.json (C43), would be off by far more."""
    engine = VllmEngine(VllmParams(servers=servers(started), temperature=temperature))
    engine.load(policies["a"])
    requests = histories(6, siblings=2)
    assert mismatch(policies["a"], requests, engine.generate(requests), temperature) < 1e-4


def test_c46_siblings_differ_and_repeats_do_not(started, policies):
    started.load(policies["a"])
    requests = histories(2, siblings=8)
    once, again = started.generate(requests), started.generate(requests)
    assert len({tuple(c.token_ids) for c in once}) == len(requests)
    assert [c.token_ids for c in once] == [c.token_ids for c in again]


def test_c44_reloaded_weights_are_used_at_once_and_no_cache_outlives_them(started, policies):
    requests = histories(4, siblings=2)
    before = {}
    for name in ("a", "b", "a", "b"):
        started.load(policies[name])
        completions = started.generate(requests)
        assert mismatch(policies[name], requests, completions, 0.6) < 1e-4
        assert before.setdefault(name, completions) == completions
    assert before["a"] != before["b"]


def test_siblings_and_second_turns_hit_the_prefix_cache(started, policies):
    started.load(policies["a"])
    started.load(policies["b"])
    first = histories(4)
    turns = started.generate(first)
    assert started.cached_tokens == 0
    started.generate(histories(4, siblings=3))
    siblings = started.cached_tokens
    assert siblings >= 3 * 4 * 32
    second = [
        Request(r.token_ids + c.token_ids + [5, 90, 1, 4] * 5, r.seed, 12, r.tree)
        for r, c in zip(first, turns, strict=True)
    ]
    completions = started.generate(second)
    assert started.cached_tokens - siblings >= 4 * 32
    assert mismatch(policies["b"], second, completions, 0.6) < 1e-4


def test_end_token_is_part_of_the_turn(started, policies):
    started.load(policies["a"])
    end = Renderer.load(policies["a"]).eos_id
    completions = started.generate([Request(r.token_ids, r.seed, 80, r.tree) for r in histories(8, siblings=8)])
    stopped = [c for c in completions if c.stopped]
    assert stopped
    assert all(c.token_ids[-1] == end and end not in c.token_ids[:-1] for c in stopped)
    assert all(end not in c.token_ids and len(c.token_ids) == 80 for c in completions if not c.stopped)


def test_whole_iterations_by_servers_train_on_exact_ratios(started, params: Params, tmp_path):
    """Two iterations of the embedded task, with a reload between them; the first step's ratios are exactly 1."""
    sections = {
        "engine": {"name": "vllm", "servers": servers(started), "temperature": 0.8},
        "policy": {"hidden": 128},
        "update": {"epochs": 1, "minibatches": 1},
    }
    run = new_run(params, tmp_path / "data", tmp_path / "runs", **sections)
    train(run)
    rows = run.metrics()
    assert [row["iteration"] for row in rows] == [0, 1]
    for number, row in enumerate(rows):
        forest = read_forest(run.iteration(number) / "forest.parquet")
        sampled = [n for n in forest.nodes if n.parent_id >= 0]
        assert {n.policy_version for n in sampled} == {number}
        assert all(n.status == Status.OK for n in sampled if n.is_terminal)
        assert row["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert abs(row["policy/kl"]) < 1e-6


def rollouts(engine: VllmEngine, policy: Path, environment: MultiHop, count: int) -> list:
    renderer, prompt = Renderer.load(policy), make_prompt(7, ["mother", "boss", "friend"], "ann")
    ids = renderer.prompt_ids(environment.chat(prompt))
    starts = [Start(prompt, n, n, 0, 0, ids, environment.reset(prompt), n) for n in range(count)]
    return Sampler(engine, renderer, environment, engine.settings, 0).sample(starts, count)


def test_y_rollouts_finish_on_the_other_server_when_one_is_killed(started, policies):
    """SIGKILL in the middle of a step."""
    started.load(policies["a"])
    seen, killed = threading.Semaphore(3), threading.Event()
    first = started.close.peek()[2][0][0]

    class Killing(MultiHop):
        def step(self, state, action):
            if not seen.acquire(False) and not killed.is_set():
                killed.set()
                os.killpg(first.process.pid, signal.SIGKILL)
            return super().step(state, action)

    nodes = rollouts(started, policies["a"], Killing(), 48)
    assert killed.is_set()
    assert sum(n.is_terminal for n in nodes) == 48
    assert all(n.status == Status.OK for n in nodes)
    assert first.process.wait(10) == -signal.SIGKILL


def test_z_when_the_last_server_is_killed_the_error_names_them(started, policies):
    last = started.close.peek()[2][0][1]
    os.killpg(last.process.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(UserError, match="no vLLM server") as caught:
        rollouts(started, policies["a"], MultiHop(), 4)
    assert all(url in str(caught.value) for url in servers(started))
    assert time.monotonic() - begin < 60
