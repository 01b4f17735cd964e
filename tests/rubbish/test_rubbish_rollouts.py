"""Engines, environments and verifiers that misbehave: a status on the rollout that they concern, or one clear line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from components.environments.base import Environment, Prompt, Transition
from components.environments.calculator import Calculator
from components.environments.devices import Devices
from components.environments.multihop import MultiHop, State, make_prompt
from components.environments.search import Search, SearchParams
from components.environments.verify import verify
from components.errors import UserError
from components.policy.engines.base import EngineParams
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.torch.trainer import TorchTrainer
from components.storage import content_hash, read_parquet, write_parquet
from components.tracking.viewer import forest_page
from components.tree.forest import Forest
from components.tree.schema import NODE_SCHEMA, Node, Origin, Status, StopReason
from tests.components.policy.forests import forest
from tests.rubbish.kinds import ANSWER, CALL, SURROGATES, UNICODE, Says, any_text, any_value, few

PROMPT = make_prompt(7, ["mother", "boss", "friend"], "ann")


@pytest.fixture(scope="module")
def renderer(random_policy: Path) -> Renderer:
    return Renderer.load(random_policy)


def roll(renderer, text: str, environment=None, count: int = 1, max_tokens: int = 128, **engine) -> list[Node]:
    """The leaves of `count` rollouts."""
    environment = environment or MultiHop()
    sampler = Sampler(Says(renderer, text, **engine), renderer, environment, EngineParams(max_tokens=max_tokens), 0)
    ids, world = renderer.prompt_ids(MultiHop().chat(PROMPT)), sampler.world(PROMPT)
    root = Node(0, "p", 0, -1, 0, Origin.ROOT)
    nodes = sampler.sample([Start(PROMPT, 0, 0, s, 0, ids, world, s) for s in range(count)], 1)
    return [node for node in Forest([root, *nodes]).nodes if node.is_terminal]


BAD_LOGPROBS = {
    "NaN": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "above 0": 0.5,
    "a probability for its logarithm": 1.0,
}


@pytest.mark.parametrize("kind", BAD_LOGPROBS)
@pytest.mark.parametrize("where", ["first", "last", "all"])
def test_rollout_with_bad_logprobs_has_a_status_and_no_reward(renderer, kind, where, caplog):
    def logprobs(count: int) -> list[float]:
        at = {"first": {0}, "last": {count - 1}, "all": set(range(count))}[where]
        return [BAD_LOGPROBS[kind] if i in at else -0.5 for i in range(count)]

    (leaf,) = roll(renderer, ANSWER, logprobs=logprobs)
    assert (leaf.status, leaf.reward, leaf.stop_reason) == (Status.ERROR, None, StopReason.TOOL_ERROR)
    assert "log-probabilities" in str(leaf.error)
    assert "1 of 1 rollouts ended in a fault" in caplog.text


POLICIES = {  # what it says in every turn, whether it ends its turns, and where its rollouts end
    "never ends a turn": (CALL, False, StopReason.LENGTH),
    "says nothing": ("", True, StopReason.MALFORMED_ACTION),
    "says nothing and never ends": ("", False, StopReason.LENGTH),
    "never calls": ("<think> boss of ann </think>", True, StopReason.MALFORMED_ACTION),
    "never answers": (CALL, True, StopReason.MAX_TURNS),
    "only thinks": ("<think> " + "boss " * 10, True, StopReason.MALFORMED_ACTION),
    "answers at once": (ANSWER, True, StopReason.ANSWERED),
    "speaks without end": ("boss " * 500, True, StopReason.LENGTH),
    "repeats markup": ("</think> </think> search search", True, StopReason.MALFORMED_ACTION),
    "answers with nothing": ("<think> done </think> answer", True, StopReason.MALFORMED_ACTION),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_every_policy_comes_to_an_end(renderer, kind):
    text, stopped, reason = POLICIES[kind]
    leaves = roll(renderer, text, stopped=stopped, count=3)
    assert [(leaf.stop_reason, leaf.status) for leaf in leaves] == [(reason, Status.OK)] * 3
    assert all(len(leaf.token_ids) <= 24 for leaf in leaves)


@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_rollout_without_room_is_cut_and_empty_turns_are_stored(renderer, room):
    prompt = len(renderer.prompt_ids(MultiHop().chat(PROMPT)))
    leaves = roll(renderer, CALL, max_tokens=prompt + room)
    assert [(leaf.stop_reason, len(leaf.token_ids)) for leaf in leaves] == [(StopReason.LENGTH, room)]


class World(Environment):
    """An environment of the user's own, whose steps and beginnings are given."""

    def __init__(self, does: object, begins: object = None) -> None:
        super().__init__()
        self.does, self.begins = does, begins

    def chat(self, prompt: Prompt):
        return MultiHop().chat(prompt)

    def reset(self, prompt: Prompt):
        return self.begins() if callable(self.begins) else State(7)

    def step(self, state, action: str):
        return self.does(state) if callable(self.does) else self.does


def raises(error: BaseException):
    def step(*_):
        raise error

    return step


FAULTS = {
    "ValueError": raises(ValueError("no")),
    "KeyError": raises(KeyError("missing")),
    "TimeoutError": raises(TimeoutError()),
    "MemoryError": raises(MemoryError()),
    "RecursionError": raises(RecursionError("deep")),
    "OSError": raises(ConnectionResetError(104, "reset")),
    "StopIteration": raises(StopIteration()),
    "AssertionError": raises(AssertionError()),
    "UnicodeError": raises(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")),
    "group": raises(ExceptionGroup("several", [ValueError("one")])),
    "text of surrogates": raises(ValueError("\ud800")),
    "text without end": raises(ValueError("x" * 10**6)),
    "nothing returned": None,
    "number": 3,
    "text": "observation",
    "pair": (State(7), "observation"),
    "dictionary": {"state": 1, "observation": "x", "stop_reason": None},
    "class": Transition,
    "look-alike": SimpleNamespace(state=1, observation="x", stop_reason=None, answer=None, role="tool", done=False),
    "observation of bytes": Transition(State(7), b"bytes"),
    "observation of a number": Transition(State(7), 7),
    "observation of NaN": Transition(State(7), float("nan")),
    "observation of a list": Transition(State(7), ["a"]),
    "answer of a number": Transition(State(7), stop_reason=StopReason.ANSWERED, answer=42),
    "answer of a list": Transition(State(7), stop_reason=StopReason.ANSWERED, answer=["a"]),
    "unknown stop reason": Transition(State(7), stop_reason="bored"),
    "stop reason of a number": Transition(State(7), stop_reason=1),
    "empty stop reason": Transition(State(7), stop_reason=""),
    "unknown role": Transition(State(7), "x", role="system"),
    "role of a list": Transition(State(7), "x", role=["tool"]),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_fault_of_the_environment_is_a_status_of_its_rollout_alone(renderer, kind, caplog):
    calls = iter(range(10))

    def step(state):
        if next(calls) == 1:
            fault = FAULTS[kind]
            return fault(state) if callable(fault) and fault is not Transition else fault
        return Transition(state, stop_reason=StopReason.ANSWERED, answer="ann")

    leaves = roll(renderer, ANSWER, World(step), count=3)
    status = Status.TIMEOUT if kind == "TimeoutError" else Status.ERROR
    assert [leaf.status for leaf in leaves] == [Status.OK, status, Status.OK]
    assert leaves[1].stop_reason == StopReason.TOOL_ERROR
    assert leaves[1].observation is None
    assert 0 < len(leaves[1].error) <= 2000
    assert "1 of 3 rollouts ended in a fault" in caplog.text
    leaves[1].error.encode()


@pytest.mark.parametrize("state", [{"turn": 0}, [0], SimpleNamespace(turn=0)], ids=["dictionary", "list", "object"])
def test_environment_that_changes_its_state_is_refused(renderer, state):
    def step(world):
        if isinstance(world, SimpleNamespace):
            world.turn += 1
        else:
            world["turn" if isinstance(world, dict) else 0] += 1
        return Transition(world, "seen")

    with pytest.raises(UserError, match=r"World\.step changes the state that it is given"):
        roll(renderer, CALL, World(step, begins=lambda: state), count=2)


def test_state_of_any_kind_is_taken(renderer):
    for state in (None, object(), np.zeros(3), lambda: 1, float("nan")):
        leaves = roll(renderer, CALL, World(lambda s: Transition(s, "seen"), begins=lambda s=state: s), max_tokens=60)
        assert [leaf.stop_reason for leaf in leaves] == [StopReason.LENGTH]


@pytest.mark.parametrize("kind", ["reset", "replay"])
def test_world_that_cannot_be_made_is_a_status_of_its_rollouts(renderer, kind, caplog):
    world = World(raises(OSError("gone")), begins=raises(OSError("gone")) if kind == "reset" else None)
    sampler = Sampler(Says(renderer, CALL), renderer, world, EngineParams(), 0)
    ids = renderer.prompt_ids(MultiHop().chat(PROMPT))
    state = sampler.world(PROMPT, [] if kind == "reset" else [CALL])
    nodes = sampler.sample([Start(PROMPT, 0, 0, s, 0, ids, state, s) for s in range(2)], 1)
    assert [(n.status, n.token_ids, n.error) for n in nodes] == [(Status.ERROR, [], "OSError: gone")] * 2
    assert "2 of 2 rollouts ended in a fault; the first: OSError: gone" in caplog.text


TEXTS = UNICODE | SURROGATES


@pytest.mark.parametrize("kind", TEXTS)
def test_text_of_every_kind_in_observations_and_answers_is_stored_and_shown(renderer, kind, tmp_path):
    text = TEXTS[kind]
    seen = iter([Transition(State(7), text), Transition(State(7), stop_reason=StopReason.ANSWERED, answer=text)])
    leaves = roll(renderer, CALL, World(lambda state: next(seen)), max_tokens=100_000)
    assert [leaf.status for leaf in leaves] == [Status.OK]
    leaf = replace(leaves[0], node_id=1, parent_id=0)
    nodes = [Node(0, "p", 0, -1, 0, Origin.ROOT, observation=text.encode("utf-8", "replace").decode()), leaf]
    write_parquet(tmp_path / "f.parquet", Forest(nodes).to_table())
    again = Forest.from_table(read_parquet(tmp_path / "f.parquet", NODE_SCHEMA))
    assert again.nodes[1].answer == leaf.answer
    assert (leaf.answer == text) == (kind in UNICODE)
    assert "<img src=x" not in forest_page("t", again)
    assert verify(MultiHop(), PROMPT, leaf.answer).reward == 0.0


def generated(kind: type) -> tuple[object, Prompt]:
    environment = kind(kind.Params(hops={2: 1.0}))
    return environment, next(environment.generate(np.random.default_rng(0), {2: 1.0}))


NOTHING_FOUND = SimpleNamespace(retrieve=lambda queries: [[] for _ in queries])
ENVIRONMENTS = {
    "multihop": (MultiHop(), PROMPT),
    "calculator": generated(Calculator),
    "devices": generated(Devices),
    "search": (Search(retriever=NOTHING_FOUND), PROMPT),
    "search in ReAct": (Search(SearchParams(react=True), retriever=NOTHING_FOUND), PROMPT),
}
ACTIONS = any_text | st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "{",
         '{"name": "search", "arguments": {"query": "\\ud800"}}',
         "answer", "search", "Action: search", "Action Input:", "set", "add", "1e999", "9" * 5000, "nan", "\x00", "ann"]
    ),
    max_size=8,
).map(" ".join)  # fmt: skip


@pytest.mark.parametrize("name", ENVIRONMENTS)
@few(20)
@given(action=ACTIONS)
def test_environment_takes_any_action(name, action):
    environment, prompt = ENVIRONMENTS[name]
    transition = environment.step(environment.reset(prompt), action)
    assert transition.done or isinstance(transition.observation, str)


SCORES = {
    "None": None, "text": "right", "empty text": "", "list": [], "dictionary": {}, "complex": 1j, "object": object(),
    "NaN": float("nan"), "NaN of text": "nan", "infinity": float("inf"), "minus one": -1, "two": 2, "percent": 100.0,
    "just above": 1.0000001, "array of two": np.ones(2), "huge": 10**400, "generator": iter([1]),
}  # fmt: skip


RAISED = {kind: fault for kind, fault in FAULTS.items() if getattr(fault, "__name__", "") == "step"}


class Verdict:
    def __init__(self, score) -> None:
        self.score = lambda prompt, answer: score(prompt) if callable(score) else score


@pytest.mark.parametrize("kind", SCORES | RAISED)
def test_verdict_that_is_no_reward_and_verifier_that_raises_are_a_status_never_a_zero(kind):
    outcome = verify(Verdict((SCORES | RAISED)[kind]), PROMPT, "ann")
    assert (outcome.reward, outcome.status) == (None, Status.TIMEOUT if kind == "TimeoutError" else Status.ERROR)
    assert outcome.detail


@few(40)
@given(any_value)
def test_any_verdict_is_a_reward_or_a_status(score):
    outcome = verify(Verdict(score), PROMPT, "ann")
    assert (outcome.status == Status.OK) == (outcome.reward is not None)
    assert outcome.reward is None or 0 <= outcome.reward <= 1


@few(30)
@given(any_text)
def test_any_answer_has_a_verdict(answer):
    for environment in (MultiHop(), Search(SearchParams(graded=True))):
        assert verify(environment, PROMPT, answer).status == Status.OK


TRAINED = UpdateParams(advantage="grpo", epochs=1, minibatches=1)
DAMAGE = {
    "NaN reward": lambda leaf: setattr(leaf, "reward", float("nan")),
    "infinite reward": lambda leaf: setattr(leaf, "reward", float("inf")),
    "reward under an error": lambda leaf: setattr(leaf, "status", Status.ERROR),
    "reward under a time-out": lambda leaf: setattr(leaf, "status", Status.TIMEOUT),
    "reward of a truncated one": lambda leaf: setattr(leaf, "status", Status.TRUNCATED),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_reward_that_is_none_is_masked(kind, random_policy, tmp_path):
    """The damaged leaf changes nothing: the update is that of the forest in which it was never scored."""
    damaged = forest([1.0, 0.0, 1.0])
    DAMAGE[kind](damaged.nodes[-1])
    for name, trees in (("damaged", damaged), ("masked", forest([1.0, 0.0, None]))):
        TorchTrainer(TRAINED, 1.0).update(trees, random_policy, tmp_path / name, seed=0)
    one, other = (content_hash(tmp_path / name / "model.safetensors") for name in ("damaged", "masked"))
    assert one == other


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logprob_that_is_no_number_is_never_trained_on(value, random_policy, tmp_path):
    damaged = forest([1.0, 0.0])
    damaged.nodes[1].logprobs[2] = value
    with pytest.raises(FloatingPointError, match="not finite"):
        TorchTrainer(TRAINED, 1.0).update(damaged, random_policy, tmp_path / "next", seed=0)
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("rewards", [[[1.0]], [[None, None]], [[]], [], [[0.3, 0.3]]])
def test_forest_without_contrast_is_no_step(rewards, random_policy, tmp_path):
    update = TorchTrainer(TRAINED, 1.0).update(forest(*rewards), random_policy, tmp_path / "next", seed=0)
    assert update.metrics["optimizer_steps"] == 0
    assert content_hash(tmp_path / "next" / "model.safetensors") == content_hash(random_policy / "model.safetensors")


def test_step_that_leaves_weights_that_are_no_numbers_writes_nothing(random_policy, tmp_path, monkeypatch):
    def step(adam: torch.optim.Adam) -> None:
        adam.param_groups[0]["params"][0].data.fill_(torch.nan)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    with pytest.raises(FloatingPointError, match="weights are not finite"):
        TorchTrainer(TRAINED, 1.0).update(forest([1.0, 0.0]), random_policy, tmp_path / "next", seed=0)
    assert not (tmp_path / "next").exists()
