"""Function calling on simulated APIs: gold proves it, branches never meet, and hostile calls do no harm."""

from __future__ import annotations

import json
import re
import sys
import time
from decimal import getcontext

import pytest

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")

from bench.functions_gold import answer_of
from components.environments.base import Prompt, replay
from components.environments.functions import Functions, FunctionsParams, State, bfcl
from components.environments.functions.calls import hermes
from components.environments.functions.gold import gold_turns, play
from components.environments.functions.prompts import MULTI_TURN, load_bfcl
from components.environments.parsing import Call
from components.environments.verify import verify
from components.tree.schema import StopReason


@pytest.fixture(scope="module")
def multi_turn() -> list[Prompt]:
    return load_bfcl(MULTI_TURN)


@pytest.fixture(scope="module")
def by_id(multi_turn: list[Prompt]) -> dict[str, Prompt]:
    return {prompt.metadata["source_id"]: prompt for prompt in multi_turn}


def world(state: State) -> str:
    """All that the APIs of a state hold, but for the wall clock."""

    def members(api):
        for name, value in vars(api).items():
            yield name, value.getstate() if name == "_random" else value

    return repr({name: sorted(members(api), key=lambda item: item[0]) for name, api in state.apis.items()})


def act(state: State, *calls: Call):
    return Functions().step(state, hermes(calls))


def made(**section) -> Functions:
    return Functions(FunctionsParams(**section))


def test_replaying_a_prefix_restores_its_state_and_branches_never_meet(multi_turn):
    environment = Functions()
    for prompt in multi_turn[::16]:
        actions = play(gold_turns(prompt))
        states = [environment.reset(prompt)]
        for action in actions:
            states.append(environment.step(states[-1], action).state)
        worlds = [world(state) for state in states]
        for length in range(len(actions)):
            replayed = replay(environment, prompt, actions[:length])
            assert world(replayed) == worlds[length]
            assert (replayed.past, replayed.steps) == (states[length].past, states[length].steps)
            branch = states[length]
            for action in reversed(actions):  # another path, from the very state that the first one went through
                transition = environment.step(branch, action)
                if transition.done:
                    break
                branch = transition.state
        assert [world(state) for state in states] == worlds


def test_nothing_leaks_into_the_package(multi_turn, by_id):
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context

    before = repr((long_context.CREDIT_CARD_EXTENSION, long_context.BOOKING_RECORD_EXTENSION))
    prompt = next(p for p in multi_turn if p.metadata["long_context"] and "TravelAPI" in p.metadata["classes"])
    cards = Functions().reset(prompt).apis["TravelAPI"].credit_card_list
    card = next(name for name in cards if name in long_context.CREDIT_CARD_EXTENSION)
    cards[card]["balance"] = -1
    assert repr((long_context.CREDIT_CARD_EXTENSION, long_context.BOOKING_RECORD_EXTENSION)) == before
    assert Functions().score(prompt, answer_of(prompt, gold_turns(prompt))) == 1.0
    assert not [name for name in vars(multi_turn_utils) if name.endswith("_instance")]
    assert "bfcl_eval.constants.model_config" not in sys.modules


def test_functions_are_held_back_until_the_user_brings_them(by_id):
    environment, prompt = Functions(), by_id["multi_turn_miss_func_0"]
    assert "sort" not in {tool["function"]["name"] for tool in environment.chat(prompt).tools}
    state = environment.reset(prompt)
    sort = Call("sort", {"file_name": "final_report.pdf"})
    for steps in gold_turns(prompt)[:3]:
        transition = act(state, sort)
        assert transition.observation == "Error during execution: there is no function 'sort'"
        for step in steps:
            state = act(state, *step).state
        transition = environment.step(state, "Done.")
        state = transition.state
    assert transition.role == "user"
    assert '"name": "sort"' in transition.observation
    assert "sorted_content" in act(state, sort).observation


def test_the_conversation_begins_as_chat_templates_take_it(by_id):
    chat = Functions().chat(by_id["multi_turn_base_0"])
    assert chat.messages == tuple(map(tuple, by_id["multi_turn_base_0"].metadata["turns"][0]))
    types = {p["type"] for tool in chat.tools for p in tool["function"]["parameters"]["properties"].values()}
    assert types <= {"string", "integer", "number", "boolean", "array", "object"}


def test_a_turn_without_calls_brings_the_next_request_and_the_last_one_the_answer(by_id):
    environment, prompt = Functions(), by_id["multi_turn_base_0"]
    state = environment.reset(prompt)
    for request in prompt.metadata["turns"][1:]:
        transition = environment.step(state, "<think> nothing to do </think> Done.")
        assert (transition.observation, transition.role) == (request[0][1], "user")
        state = transition.state
    assert environment.step(state, "Done.").stop_reason == StopReason.ANSWERED


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (Call("format_disk", {}), "there is no function"),
        (Call("__init__", {}), "there is no function"),
        (Call("_load_scenario", {"scenario": {}}), "there is no function"),
        (Call("root.__class__", {}), "there is no function"),
        (Call("ls.__globals__", {}), "there is no function"),
        (Call("lockDoors", {}), "there is no function"),  # of a class that is not involved
        (Call("cd", {}), "missing 1 required positional argument"),
        (Call("cd", {"folder": "document", "deep": True}), "unexpected keyword argument"),
        (Call("cd", {"self": 1, "folder": "document"}), "multiple values"),
        (Call("cd", {"folder": 3}), "Error during execution"),
        (Call("tail", {"file_name": ["final_report.pdf"]}), "Error during execution"),
        (Call("find", {"path": "/" * 50_000}), "error"),
        (Call("mkdir", {"dir_name": "木" * 10_000}), "None"),
    ],
)
def test_wrong_calls_are_told_and_change_no_earlier_state(by_id, call, told):
    state = Functions().reset(by_id["multi_turn_base_0"])
    before = world(state)
    transition = act(state, call)
    assert not transition.done
    assert told in transition.observation
    assert world(state) == before


@pytest.mark.parametrize(
    "call",
    [
        Call("power", {"base": 10, "exponent": 10**9}),
        Call("power", {"base": 10**4000, "exponent": 10**4000}),
        Call("power", {"base": 9, "exponent": 9_000}),  # short of the limit, but with more digits than are written
        Call("square_root", {"number": 2, "precision": 10**9}),
        Call("logarithm", {"value": 2, "base": 10, "precision": 10**300}),
        Call("logarithm", {"value": 2, "base": 10, "precision": "1000000000"}),
        Call("round_number", {"number": 1, "decimal_places": -(10**9)}),
        Call("power", {"base": 1e308, "exponent": 1e308}),
        Call("mean", {"numbers": [[]] * 10_000}),
    ],
)
def test_costly_numbers_are_refused_at_once(multi_turn, call):
    prompt = next(p for p in multi_turn if "MathAPI" in p.metadata["classes"])
    start = time.process_time()
    assert "rror" in act(Functions().reset(prompt), call).observation
    assert time.process_time() - start < 1.0


def test_precision_of_the_process_stays(multi_turn):
    import mpmath

    prompt = next(p for p in multi_turn if "MathAPI" in p.metadata["classes"])
    before = getcontext().prec, mpmath.mp.dps
    root = Call("square_root", {"number": 2, "precision": 50})
    transition = act(Functions().reset(prompt), root, Call("logarithm", {"value": 2, "base": 3, "precision": 50}))
    assert "1.4142135623730950488016887242096980785696718753769" in transition.observation
    assert (getcontext().prec, mpmath.mp.dps) == before


@pytest.mark.parametrize(
    "calls",
    [
        # a folder in itself: walks and comparisons of it would never end
        [Call("mkdir", {"dir_name": "a"}), Call("cp", {"source": "a", "destination": "a"})],
        # folders that double with every copy
        [Call("mkdir", {"dir_name": "n0"}), Call("mkdir", {"dir_name": "m0"})]
        + [
            call
            for k in range(15)
            for call in (
                Call("mv", {"source": f"m{k}", "destination": f"n{k}"}),
                Call("cp", {"source": f"n{k}", "destination": f"m{k + 1}"}),
                Call("mkdir", {"dir_name": f"n{k + 1}"}),
                Call("mv", {"source": f"n{k}", "destination": f"n{k + 1}"}),
            )
        ],
        # a very deep path
        [call for _ in range(32) for call in (Call("mkdir", {"dir_name": "d"}), Call("cd", {"folder": "d"}))],
    ],
    ids=["in itself", "doubling", "deep"],
)
def test_file_systems_of_no_use_end_the_rollout_at_once(by_id, calls):
    environment, prompt = Functions(), by_id["multi_turn_base_0"]
    state = environment.reset(prompt)
    start = time.process_time()
    for _ in range(8):
        transition = environment.step(state, hermes(calls))
        if transition.done:
            break
        state = transition.state
    assert transition.stop_reason == StopReason.TOOL_ERROR
    assert verify(environment, prompt, transition.answer).reward == 0.0
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "cd", "arguments": {"fold', "a tool call is no JSON"),
        ('{"name": "cd", "parameters": {"fold', "a tool call is no JSON"),
        ("[cd(folder='document'", "calls that cannot be read"),
        ("cd(folder='document'", "calls that cannot be read"),
        ("I go there: [cd(folder='document')]", "text stands before [cd"),
        ("<think> x", "the thought does not end"),
    ],
)
def test_malformed_calls_stop_the_rollout_and_run_nothing(by_id, text, reason):
    """In its last turn; before that the policy is told why."""
    state = Functions().reset(by_id["multi_turn_base_0"])
    told = made(max_turns=2).step(state, text)
    assert told.observation.startswith(f"Error: {reason}")
    assert (told.state.apis is state.apis, told.state.steps, told.state.turn, told.role) == (True, (), 1, "tool")
    last = made(max_turns=1).step(state, text)
    assert (last.stop_reason, last.answer) == (StopReason.MALFORMED_ACTION, None)
    assert last.state.apis is state.apis


def test_a_malformed_call_in_the_only_turn_ends_the_rollout():
    environment, prompt = made(), load_bfcl(["simple_python"])[0]
    transition = environment.step(environment.reset(prompt), '<tool_call>{"name": "a"}')
    assert transition.stop_reason == StopReason.MALFORMED_ACTION
    assert environment.score(prompt, transition.answer) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "cd(folder='document')",
        "[cd(folder='document')]",
        '{"name": "cd", "parameters": {"folder": "document"}}',
        '<|python_tag|>{"name": "cd", "arguments": {"folder": "document"}}',
        'Action: cd\nAction Input: {"folder": "document"}',
    ],
)
def test_every_form_of_a_call_is_run(by_id, text):
    state = Functions().reset(by_id["multi_turn_base_0"])
    assert "document" in Functions().step(state, text).observation


def test_react_names_the_functions_and_observes_as_the_user(by_id):
    environment, prompt = made(react=True), by_id["multi_turn_base_0"]
    chat = environment.chat(prompt)
    assert (chat.tools, chat.messages[1:]) == ((), tuple(map(tuple, prompt.metadata["turns"][0])))
    for said in ('"name": "cd"', "Action: FUNCTION\nAction Input: an object", "[first(a=1), second(b=2)]"):
        assert said in chat.messages[0][1]
    live = next(p for p in load_bfcl(["live_simple"]) if p.metadata["turns"][0][0][0] == "system")
    messages = environment.chat(live).messages
    assert [role for role, _ in messages].count("system") == 1
    assert messages[0][1].startswith(live.metadata["turns"][0][0][1])
    transition = environment.step(environment.reset(prompt), 'Action: cd\nAction Input: {"folder": "document"}')
    assert (transition.role, transition.observation[:13]) == ("user", "Observation: ")
    assert environment.step(transition.state, "Final Answer: done").observation == prompt.metadata["turns"][1][0][1]
    state = environment.reset(prompt)
    for steps in gold_turns(prompt):
        for call in [call for step in steps for call in step]:
            state = environment.step(state, f"Action: {call.name}\nAction Input: {json.dumps(call.arguments)}").state
        transition = environment.step(state, "Thought: done.\nFinal Answer: done")
        state = transition.state
    assert environment.score(prompt, transition.answer) == 1.0


def test_long_outputs_are_cut_in_the_middle_and_say_so(by_id, monkeypatch):
    monkeypatch.setattr(Functions, "max_observation", 100)
    state = Functions().reset(by_id["multi_turn_base_0"])
    text = "a" * 30_000 + "b" * 30_000
    shown = act(state, Call("echo", {"content": text})).observation
    assert len(shown) < 150
    assert shown.startswith('{"terminal_output": "aaa')
    assert shown.endswith('bbb"}')
    assert "59923 characters left out" in shown


def test_steps_and_turns_are_limited(by_id, monkeypatch):
    monkeypatch.setattr(Functions, "max_steps", 3)
    environment, look = made(max_turns=6), hermes([Call("ls", {})])
    state = environment.reset(by_id["multi_turn_base_0"])
    for _ in range(3):
        state = environment.step(state, look).state
    assert environment.step(state, look).stop_reason == StopReason.MAX_TURNS
    state = environment.step(state, "Done.").state
    state = environment.step(state, look).state
    assert environment.step(state, look).stop_reason == StopReason.MAX_TURNS
    assert environment.step(state, "Done.").stop_reason == StopReason.MAX_TURNS


def test_arguments_do_not_live_on_in_the_apis(multi_turn):
    prompt = next(p for p in multi_turn if p.metadata["config"].get("TwitterAPI", {}).get("authenticated"))
    tags = ["#a"]
    state = act(Functions().reset(prompt), Call("post_tweet", {"content": "x", "tags": tags})).state
    posted = list(state.apis["TwitterAPI"].tweets.values())[-1]["tags"]
    posted.append("#b")
    assert state.steps[0][0].arguments["tags"] == ["#a"]


def test_missing_package_is_one_clear_line(monkeypatch):
    from components.errors import UserError

    bfcl._root.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("uv pip install --no-deps bfcl-eval==2026.3.23")):
        load_bfcl()
    bfcl._root.cache_clear()
