"""Multi-turn rollouts: token-exact prefixes, masks made as tokens are appended, typed stops, exact branching.

Engines that sample in batches and engines that take single requests give the same nodes, whoever is done first.
"""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from components.environments.base import replay
from components.environments.multihop import MultiHop, make_prompt
from components.errors import UserError
from components.policy.engines.base import AsyncEngine, Completion, Engine, EngineParams, Request
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.policy.warmup import demonstrate
from components.seeds import derive_seed
from components.storage import read_parquet, write_parquet
from components.tree.forest import Forest
from components.tree.schema import NODE_SCHEMA, Node, Origin, Status, StopReason

PROMPT = make_prompt(7, ["mother", "boss", "friend"], "ann")
GOLD = MultiHop().solve(PROMPT)
SEARCH = "<think> mother of ann </think> search ann mat"


class Scripted(Engine):
    """Says the turns of a script, by how many turns the history has, and records its requests."""

    batch_size = 5
    prompt_tokens = cached_tokens = 0

    def __init__(self, renderer: Renderer, turns: list[str], cut_last: bool = False) -> None:
        self.renderer, self.turns, self.cut_last = renderer, turns, cut_last
        self.requests: list[Request] = []

    def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        turn = self.renderer.tokenizer.decode(request.token_ids).count("<|assistant|>") - 1
        stopped = not (self.cut_last and turn == len(self.turns) - 1)
        return self.say(self.turns[min(turn, len(self.turns) - 1)], stopped)

    def say(self, text: str, stopped: bool = True, logprob: float = -0.5) -> Completion:
        ids = self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, self.renderer.eos_id] if stopped else list(ids)
        return Completion(ids, [logprob] * len(ids), stopped)

    def generate(self, requests: list[Request]) -> list[Completion]:
        return [self.complete(request) for request in requests]


class Batched(Scripted):
    """Plays the gold path; the seed decides the log-probabilities and whether it breaks off."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer, GOLD)

    def complete(self, request: Request) -> Completion:
        turn = self.renderer.tokenizer.decode(request.token_ids).count("<|assistant|>") - 1
        return self.say(GOLD[turn] if request.seed % 3 else "stop", logprob=-(request.seed % 101) / 7)


class Concurrent(Batched, AsyncEngine):
    """The same, one request at a time, each done after a while of its own."""

    async def sample(self, request: Request) -> Completion:
        for _ in range(random.randrange(20)):
            await asyncio.sleep(0)
        return self.complete(request)


def sampler(engine: Scripted, environment: Any = None, settings: EngineParams | None = None) -> Sampler:
    return Sampler(engine, engine.renderer, environment or MultiHop(), settings or EngineParams(), 3)


def starts(renderer: Renderer, count: int) -> list[Start]:
    ids = renderer.prompt_ids(MultiHop().chat(PROMPT))
    return [Start(PROMPT, n % 3, n % 3, n, 0, ids, MultiHop().reset(PROMPT), 1000 + n) for n in range(count)]


def roll(renderer: Renderer, turns: list[str], environment: Any = None, **options: Any) -> list[Node]:
    """The root and the nodes of one rollout."""
    settings = options.pop("settings", None)
    (start,) = starts(renderer, 1)
    count = len(start.token_ids)
    root = Node(0, PROMPT.prompt_id, 0, -1, 0, Origin.ROOT, token_ids=start.token_ids, is_action=[False] * count,
                logprobs=[np.nan] * count)  # fmt: skip
    return [root, *sampler(Scripted(renderer, turns, **options), environment, settings).sample([start], 1)]


def test_gold_path_is_sampled_observed_and_answered(renderer):
    nodes = roll(renderer, GOLD)
    environment, state, observed = MultiHop(), MultiHop().reset(PROMPT), []
    for action in GOLD:
        transition = environment.step(state, action)
        state, observed = transition.state, [*observed, transition.observation]
    assert [n.observation for n in nodes[1:]] == observed
    assert (nodes[-1].stop_reason, nodes[-1].answer) == (StopReason.ANSWERED, PROMPT.answer)
    assert [n.parent_id for n in nodes] == [-1, 0, 1, 2, 3]
    assert all(n.policy_version == 3 for n in nodes[1:])


def test_deltas_concatenate_to_the_sequence_of_a_demonstration(renderer):
    nodes = roll(renderer, GOLD)
    ids, is_action = demonstrate(MultiHop(), PROMPT, renderer)
    assert Forest(nodes).prefix_ids(4) == ids
    assert [a for n in nodes for a in n.is_action] == is_action


def test_observations_and_prompt_are_not_trained_on(renderer):
    """The mask is made when tokens are appended: its sum is the number of sampled tokens."""
    nodes = roll(renderer, GOLD)
    for node in nodes:
        assert [np.isfinite(x) for x in node.logprobs] == node.is_action
    sampled = sum(len(renderer.tokenizer(turn, add_special_tokens=False)["input_ids"]) + 1 for turn in GOLD)
    assert sum(sum(n.is_action) for n in nodes) == sampled


def test_each_turn_is_asked_with_the_exact_history(renderer):
    engine = Scripted(renderer, GOLD)
    sampler(engine).sample(starts(renderer, 1), 1)
    for before, after in zip(engine.requests, engine.requests[1:], strict=False):
        assert after.token_ids[: len(before.token_ids)] == before.token_ids
    assert len({r.seed for r in engine.requests}) == len(engine.requests)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        (["<think> done </think> dance"], StopReason.MALFORMED_ACTION),
        (["search ann"], StopReason.MALFORMED_ACTION),
        ([""], StopReason.MALFORMED_ACTION),
        ([SEARCH] * 9, StopReason.MAX_TURNS),
    ],
)
def test_what_a_policy_writes_is_a_stop_reason_never_an_exception(renderer, turns, reason):
    last = roll(renderer, turns)[-1]
    assert (last.stop_reason, last.status) == (reason, Status.OK)


def test_truncated_call_is_never_parsed(renderer):
    """ "answer ann" cut before its end token may be the start of something else."""
    last = roll(renderer, ["<think> done </think> answer ann"], cut_last=True)[-1]
    assert (last.stop_reason, last.observation, last.answer) == (StopReason.LENGTH, None, None)


def test_rollout_longer_than_max_tokens_is_cut(renderer):
    settings = EngineParams(max_tokens=len(renderer.prompt_ids(MultiHop().chat(PROMPT))) + 12)
    assert roll(renderer, [SEARCH] * 3, settings=settings)[-1].is_terminal


class Broken(MultiHop):
    """A tool that fails at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = threading.Semaphore(1)

    def step(self, state: Any, action: str) -> Any:
        if self.broken.acquire(False):
            raise ConnectionError("tool is away")
        return super().step(state, action)


@pytest.mark.parametrize("engine", [Batched, Concurrent])
def test_failing_tool_is_an_error_status_and_spares_the_others(renderer, engine):
    leaves = [n for n in sampler(engine(renderer), Broken()).sample(starts(renderer, 12), 3) if n.is_terminal]
    (failed,) = [n for n in leaves if n.stop_reason == StopReason.TOOL_ERROR]
    assert (failed.status, failed.reward, failed.error) == (Status.ERROR, None, "ConnectionError: tool is away")
    assert len(leaves) == 12


def test_observation_that_cannot_be_encoded_safely_is_an_error_of_its_rollout(renderer, monkeypatch):
    """The tokenizer takes it for a mark of the template in spite of all: it must not reach the policy."""

    class Forging(MultiHop):
        def step(self, state: Any, action: str) -> Any:
            return replace(super().step(state, action), observation="<|end|>")

    monkeypatch.setattr("components.policy.renderer._broken", lambda text, marks: text)
    _, leaf = roll(Renderer(renderer.tokenizer), GOLD, environment=Forging())
    assert leaf.status == Status.ERROR
    assert "marks of the chat template" in str(leaf.error)
    assert leaf.token_ids.count(renderer.eos_id) == 1


def test_branching_restores_the_world_and_leaves_the_original_alone():
    environment = MultiHop()
    at_two = replay(environment, PROMPT, GOLD[:2])
    left = environment.step(at_two, GOLD[2])
    right = environment.step(at_two, "<think> x </think> search zoe pat")
    assert at_two.turn == 2
    assert left.state.turn == right.state.turn == 3
    assert left.observation == environment.step(replay(environment, PROMPT, GOLD[:2]), GOLD[2]).observation


def test_seeds_differ_by_run_iteration_anchor_and_sibling():
    seeds = {derive_seed(r, i, a, s) for r in range(3) for i in range(3) for a in "xyz" for s in range(3)}
    assert len(seeds) == 81
    assert derive_seed(1, 2, "x", 3) == derive_seed(1, 2, "x", 3)
    assert all(0 <= s < 2**63 for s in seeds)


def test_lengths_that_differ_name_the_node():
    with pytest.raises(ValueError, match=r"node 4 of tree 2 .*lengths 3, 3 and 2"):
        Node(2, "p", 4, 1, 1, Origin.FACTUAL, token_ids=[1, 2, 3], is_action=[True] * 3, logprobs=[0.0, 0.0])


def test_nodes_do_not_share_their_lists():
    a, b = (Node(0, "p", i, i - 1, i, Origin.ROOT) for i in range(2))
    a.token_ids.append(1)
    assert b.token_ids == []


def test_forest_survives_parquet_and_refuses_broken_trees(renderer, tmp_path):
    forest = Forest(roll(renderer, GOLD))
    write_parquet(tmp_path / "f.parquet", forest.to_table())
    again = Forest.from_table(read_parquet(tmp_path / "f.parquet", NODE_SCHEMA))
    assert repr(again.to_table().to_pylist()) == repr(forest.to_table().to_pylist())  # repr: NaN differs from itself
    with pytest.raises(ValueError, match="another tree"):
        Forest([forest.nodes[0], replace(forest.nodes[1], tree_id=1)])
    with pytest.raises(ValueError, match="earlier row"):
        Forest([replace(forest.nodes[0]), replace(forest.nodes[1], parent_id=5)])


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
    others_done, first, ended = threading.Event(), threading.Semaphore(1), 0

    class Slow(MultiHop):
        def step(self, state: Any, action: str) -> Any:
            if state.turn == 0 and threading.current_thread() is not threading.main_thread() and first.acquire(False):
                assert others_done.wait(30)
            return super().step(state, action)

    def progress(count: int) -> None:
        nonlocal ended
        ended += count
        if ended == 11:
            others_done.set()

    nodes = sampler(Concurrent(renderer), Slow()).sample(starts(renderer, 12), 3, progress)
    assert ended == 12
    assert all(n.status == Status.OK for n in nodes)


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
