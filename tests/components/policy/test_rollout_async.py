"""Rollouts as coroutines: no rollout waits for another one's turn, and nothing depends on who is done first."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from components.environments.multihop import MultiHop, make_prompt, solve
from components.errors import UserError
from components.policy.engines.base import Completion, EngineParams, Request
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.tree.schema import Status, StopReason

PROMPT = make_prompt(7, ["mother", "boss", "friend"], "ann")
GOLD = [turn for turn, _ in solve(PROMPT)]


@pytest.fixture(scope="module")
def renderer(random_policy: Path) -> Renderer:
    return Renderer.load(random_policy)


class Batched:
    """Plays the gold path; the seed decides the log-probabilities and whether it breaks off."""

    batch_size = 5
    prompt_tokens = cached_tokens = 0

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer

    def load(self, policy: Path) -> None: ...

    def complete(self, request: Request) -> Completion:
        history = self.renderer.tokenizer.decode(request.token_ids)
        text = GOLD[history.count("<|assistant|>") - 1] if request.seed % 3 else "stop"
        ids = [*self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"], self.renderer.eos_id]
        return Completion(ids, [-(request.seed % 101) / 7] * len(ids), True)

    def generate(self, requests: list[Request]) -> list[Completion]:
        return [self.complete(request) for request in requests]


class Concurrent(Batched):
    """The same, one request at a time, each done after a while of its own."""

    async def sample(self, request: Request) -> Completion:
        for _ in range(random.randrange(20)):
            await asyncio.sleep(0)
        return self.complete(request)


def sampler(engine: Batched, environment: Any = None) -> Sampler:
    return Sampler(engine, engine.renderer, environment or MultiHop(6), EngineParams(), 3)


def starts(renderer: Renderer, count: int) -> list[Start]:
    ids = renderer.prompt_ids(MultiHop().chat(PROMPT))
    return [Start(PROMPT, n % 3, n % 3, n, 0, ids, MultiHop(6).reset(PROMPT), 1000 + n) for n in range(count)]


def test_the_same_nodes_as_in_batches_whoever_is_done_first(renderer):
    expected = sampler(Batched(renderer)).sample(starts(renderer, 24), 3)
    assert len({n.turn for n in expected}) > 1
    for _ in range(3):
        assert repr(sampler(Concurrent(renderer)).sample(starts(renderer, 24), 3)) == repr(expected)


def test_every_request_names_its_tree(renderer):
    class Noting(Concurrent):
        async def sample(self, request: Request) -> Completion:
            trees.append((request.tree, request.seed))
            return self.complete(request)

    trees: list[tuple[int, int]] = []
    nodes = sampler(Noting(renderer)).sample(starts(renderer, 9), 3)
    assert sorted(trees) == sorted((n.tree_id, n.seed) for n in nodes)


def test_a_slow_tool_delays_no_other_rollout(renderer):
    """The tool of the first rollout answers only when all the others have ended: with a barrier, never."""
    others_done = threading.Event()

    class Slow(MultiHop):
        def step(self, state: Any, action: str) -> Any:
            if state.turn == 0 and threading.current_thread() is not threading.main_thread() and first.acquire(False):
                assert others_done.wait(30)
            return super().step(state, action)

    first, ended = threading.Semaphore(1), 0

    def progress(count: int) -> None:
        nonlocal ended
        ended += count
        if ended == 11:
            others_done.set()

    nodes = sampler(Concurrent(renderer), Slow(6)).sample(starts(renderer, 12), 3, progress)
    assert ended == 12
    assert all(n.status == Status.OK for n in nodes)


def test_a_failing_tool_concerns_its_rollout_alone(renderer):
    class Broken(MultiHop):
        def step(self, state: Any, action: str) -> Any:
            if broken.acquire(False):
                raise ConnectionError("tool is away")
            return super().step(state, action)

    broken = threading.Semaphore(1)
    leaves = [n for n in sampler(Concurrent(renderer), Broken(6)).sample(starts(renderer, 12), 3) if n.is_terminal]
    assert [n.stop_reason for n in leaves].count(StopReason.TOOL_ERROR) == 1
    assert len(leaves) == 12


def test_an_engine_that_fails_ends_the_sampling_and_cancels_the_rest(renderer):
    class Failing(Concurrent):
        cancelled = 0

        async def sample(self, request: Request) -> Completion:
            if request.tree == 1:
                raise UserError("no server is left")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                Failing.cancelled += 1
                raise
            return self.complete(request)

    with pytest.raises(UserError, match="no server is left"):
        sampler(Failing(renderer)).sample(starts(renderer, 12), 3)
    assert Failing.cancelled == 8


def test_several_threads_sample_at_once(renderer):
    one = sampler(Concurrent(renderer))
    expected = repr(one.sample(starts(renderer, 12), 3))
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: repr(one.sample(starts(renderer, 12), 3)), range(8))) == {expected}
