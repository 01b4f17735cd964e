"""What a chat model wrote in one turn: its thought, its tool calls, its answer.

Two forms are read: Hermes, as the Qwen chat templates render it,

    <think> ... </think> <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>

and plain ReAct text (`Action:` and `Action Input:`, or `Final Answer:`). A call that cannot be read is an error, never
a call with other arguments.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ACTION = re.compile(r"^Action:[ \t]*(\S+)[ \t]*\n+Action Input:[ \t]*(.*)\Z", re.DOTALL | re.MULTILINE)
_FINAL = re.compile(r"^Final Answer:[ \t]*(.*)\Z", re.DOTALL | re.MULTILINE)


class MalformedCall(ValueError):
    """A tool call that cannot be read."""


@dataclass(frozen=True)
class Call:
    """One tool call."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One turn of the policy.

    Attributes:
        thought: Text in <think>, or before the action in ReAct form.
        calls: Tool calls, in order; empty where the turn is an answer.
        text: What remains: the answer where there are no calls.
    """

    thought: str
    calls: tuple[Call, ...]
    text: str


def parse_turn(text: str) -> Turn:
    """Reads a turn.

    Raises:
        MalformedCall: if a call is cut, is no JSON object with a name, or its arguments are no object.
    """
    thought, closed, rest = text.rpartition("</think>")
    thought = thought.replace("<think>", "", 1).strip() if closed else ""
    if not closed and "<think>" in rest:
        raise MalformedCall("the thought does not end")
    if found := _FINAL.search(rest):
        return Turn((thought or rest[: found.start()]).strip(), (), found[1].strip())
    if found := _ACTION.search(rest):
        return Turn((thought or rest[: found.start()]).strip(), (_call(found[1], found[2].strip()),), "")
    bodies, left = _take_calls(rest)
    return Turn(thought, tuple(map(_hermes, bodies)), left.strip())


def _take_calls(text: str) -> tuple[list[str], str]:
    """What stands in the calls, and what is left; linear in the text's length, whatever it holds."""
    bodies, left, at = [], [], 0
    while (begin := text.find(_OPEN, at)) >= 0:
        end = text.find(_CLOSE, begin)
        if end < 0:
            raise MalformedCall("a tool call does not end")
        bodies.append(text[begin + len(_OPEN) : end])
        left.append(text[at:begin])
        at = end + len(_CLOSE)
    left.append(text[at:])
    if any(_CLOSE in part for part in left):
        raise MalformedCall("a tool call does not begin")
    return bodies, "".join(left)


def _hermes(body: str) -> Call:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"a tool call is no JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCall("a tool call has no name")
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise MalformedCall(f"the arguments of {value['name']} are no object")
    return Call(value["name"], arguments)


def _call(name: str, body: str) -> Call:
    """A ReAct action, whose input is a JSON object."""
    try:
        arguments = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"the input of {name} is no JSON: {str(error)[:200]}") from None
    if not isinstance(arguments, dict):
        raise MalformedCall(f"the input of {name} is no object")
    return Call(name, arguments)
