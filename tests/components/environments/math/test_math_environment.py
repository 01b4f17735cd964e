"""The mathematical environment: a call is run once and whole or not at all; the last box is the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from components.environments.base import Prompt, replay
from components.environments.math import MathParams, MathWithPython
from components.environments.math.boxed import last_boxed
from components.environments.math.python_tool import Result
from components.tree.schema import Status, StopReason

PROMPT = Prompt("id", "What is 6 times 7?", "42")


@dataclass
class Recorder:
    """A tool that says back what it was given."""

    output: str | None = None
    status: Status = Status.OK
    seen: list[str] = field(default_factory=list)

    def run(self, code: str) -> Result:
        self.seen.append(code)
        return Result(f"ran {code}" if self.output is None else self.output, self.status)


def call(code: object = "print(6 * 7)", name: str = "python", **more: object) -> str:
    body = json.dumps({"name": name, "arguments": {"code": code, **more}})
    return f"<think> hm </think>\n<tool_call>\n{body}\n</tool_call>"


@pytest.fixture
def tool() -> Recorder:
    return Recorder()


@pytest.fixture
def environment(tool) -> MathWithPython:
    return MathWithPython(MathParams(max_turns=4), python=tool)


@pytest.fixture
def react(tool) -> MathWithPython:
    return MathWithPython(MathParams(max_turns=4, react=True), python=tool)


def test_a_conversation_begins_with_the_rules_the_question_and_the_tool(environment):
    chat = environment.chat(PROMPT)
    assert [role for role, _ in chat.messages] == ["system", "user"]
    assert "\\boxed{}" in chat.messages[0][1]
    assert chat.messages[1][1] == PROMPT.question
    assert chat.tools[0]["function"]["parameters"]["required"] == ["code"]


def test_a_call_is_run_and_its_output_observed(environment, tool):
    transition = environment.step(environment.reset(PROMPT), call())
    assert (transition.observation, transition.done, transition.role) == ("ran print(6 * 7)", False, "tool")
    assert tool.seen == ["print(6 * 7)"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "python", "arguments": {"code": "a = 1\nprint(a)"}}</tool_call>',
        '<|python_tag|>{"name": "python", "parameters": {"code": "a = 1\\nprint(a)"}}',
        '{"name": "python", "parameters": {"code": "a = 1\nprint(a)"}}',
        'Action: python\nAction Input: {"code": "```python\na = 1\nprint(a)\n```"}',
    ],
)
def test_line_breaks_reach_the_tool_in_every_form(environment, tool, text):
    environment.step(environment.reset(PROMPT), text)
    assert tool.seen == ["a = 1\nprint(a)"]


def test_react_tells_its_form_and_takes_plain_code(react, tool):
    chat = react.chat(PROMPT)
    assert chat.tools == ()
    assert "python(code)" in chat.messages[0][1]
    assert "Action: python\nAction Input: the code" in chat.messages[0][1]
    for code in ("for i in range(2):\n    print(i)", "```python\nx = {1: 2}\nprint(x)\n```", "```\n1 + 1\n```"):
        transition = react.step(react.reset(PROMPT), f"Thought: I compute.\nAction: python\nAction Input:\n{code}")
        assert (transition.role, transition.observation) == ("user", f"Observation: ran {tool.seen[-1]}")
    assert tool.seen == ["for i in range(2):\n    print(i)", "x = {1: 2}\nprint(x)", "1 + 1"]
    last = react.step(react.reset(PROMPT), react.solve(PROMPT)[0])
    assert (last.stop_reason, last.answer) == (StopReason.ANSWERED, "42")
    refused = react.step(react.reset(PROMPT), 'Action: python\nAction Input: {"code": "pri')
    assert refused.observation.startswith("Observation: Error: the input of python is no JSON")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think> \\boxed{1} </think> So \\boxed{42}.", "42"),
        ("First \\boxed{41}, no: $\\boxed{\\frac{84}{2}}$", "\\frac{84}{2}"),
        ("The answer is 42.", "The answer is 42."),
        ("Final Answer: 42", "42"),
        ("\\boxed{42", "\\boxed{42"),
        ("\\boxed{}", "\\boxed{}"),
    ],
)
def test_a_turn_without_a_call_is_the_answer(environment, text, answer):
    transition = environment.step(environment.reset(PROMPT), text)
    assert (transition.stop_reason, transition.answer) == (StopReason.ANSWERED, answer)


@pytest.mark.parametrize(
    "text",
    [
        call()[:-20],
        call().replace('"arguments"', "arguments"),
        '<tool_call>{"name": "python"}</tool_call>',
        '<tool_call>{"name": "python", "arguments": "print(1)"}</tool_call>',
        call(""),
        call("  \n"),
        call(None),
        call(["print(1)"]),
        call(name="bash"),
        call(timeout=100),
        call() + call().partition("\n")[2],
        "<think> I never stop",
        "Action: python\nAction Input: print(1)",
        "<tool_call>" * 20_000 + "</tool_call>" * 20_000,
    ],
)
def test_a_call_that_cannot_be_read_is_an_error_and_never_run(environment, tool, text):
    transition = environment.step(environment.reset(PROMPT), text)
    assert transition.observation.startswith("Error: ")
    assert transition.observation.endswith("; nothing was run.")
    assert len(transition.observation) < 500
    assert not transition.done
    assert tool.seen == []
    last = replay(environment, PROMPT, [call()] * 3)
    assert environment.step(last, text).stop_reason == StopReason.MALFORMED_ACTION


@pytest.mark.parametrize("text", ["", "   ", "<think> hm </think>", "</think>"])
def test_a_turn_that_says_nothing_is_malformed(environment, text):
    transition = environment.step(environment.reset(PROMPT), text)
    assert (transition.stop_reason, transition.answer) == (StopReason.MALFORMED_ACTION, None)


def test_the_last_turn_may_answer_but_not_call(environment, tool):
    state = replay(environment, PROMPT, [call()] * 3)
    assert environment.step(state, call()).stop_reason == StopReason.MAX_TURNS
    assert environment.step(state, "\\boxed{42}").answer == "42"
    assert len(tool.seen) == 3


def test_a_step_leaves_the_old_state_alone(environment):
    state = environment.reset(PROMPT)
    first, second = environment.step(state, call()), environment.step(state, call())
    assert (state.turn, first) == (0, second)


def test_silence_and_failures_are_observed(tool):
    environment = MathWithPython(python=tool)
    for output, status, seen in [
        ("", Status.OK, "(no output: print what you want to see)"),
        ("TimeoutError: stopped after 2 s", Status.TIMEOUT, "TimeoutError: stopped after 2 s"),
        ("", Status.ERROR, "error"),
    ]:
        tool.output, tool.status = output, status
        assert environment.step(environment.reset(PROMPT), call()).observation == seen


def test_the_default_tool_computes():
    pytest.importorskip("pydantic_monty")
    environment = MathWithPython()
    assert environment.step(environment.reset(PROMPT), call("x = 6\nx * 7")).observation == "42"
    assert "MemoryError" in environment.step(environment.reset(PROMPT), call("10**10**8")).observation


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("boxed{1}", None),
        (r"\boxed{1}", "1"),
        (r"\boxed {1}", "1"),
        (r"\fbox{1}", "1"),
        (r"\boxed{a{b}c}", "a{b}c"),
        (r"\boxed{1} \boxed{2", "1"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{1} }} {{", "1"),
        (r"{ \boxed{1} ", "1"),
        (r"\\boxed{1}", None),
        ("\\boxed{" * 100_000 + "5" + "}", "5"),
        ("}" * 100_000 + r"\boxed{5}", "5"),
    ],
)
def test_the_last_complete_box_counts(text, content):
    assert last_boxed(text) == content
