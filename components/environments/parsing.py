"""What a chat model wrote in one turn: its thought, its tool calls, its answer.

Three forms are read:

- Hermes, as the chat templates of Qwen2.5 and Qwen3 render it:
  ``<think> ... </think> <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>``
- Llama 3.1 and later, as its model cards print it: the turn is a JSON object, several with a semicolon between them, or
  a list of them, with or without a tag: ``<|python_tag|>{"name": "search", "parameters": {"query": "..."}}``
- plain ReAct text: `Action:` and `Action Input:`, or `Final Answer:`.

A call that cannot be read, or that can be read in two ways, is an error that says why. It is never a call with other
arguments, and never taken for an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

_THINK, _END_THINK, _OPEN, _CLOSE, _TAG = "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"
_ACTION = re.compile(r"^Action:[ \t]*(\S+)[ \t]*\n+Action Input:", re.MULTILINE)
_HALF_ACTION = re.compile(r"^Action(?: Input)?:", re.MULTILINE)
_FINAL = re.compile(r"^Final Answer:", re.MULTILINE)
_NEXT = re.compile(r"^(?:Observation|Thought|Action|Action Input):", re.MULTILINE)
# Without tags: the whole turn, whatever key comes first; or, after other text, what is a call beyond doubt.
_BARE = re.compile(r"""\[?\s*\{\s*["'](?:name|type|function|arguments|parameters)["']\s*:""")
_NAMED = re.compile(r"""\{\s*["']name["']\s*:\s*["'][^"'\n]*["']\s*,\s*["'](?:arguments|parameters)["']\s*:""")
_BETWEEN = re.compile(r"[\s;,]*")
_ENDS = ("<|eom_id|>", "<|eot_id|>")  # of a turn of Llama, where the other one is the tokenizer's


class MalformedCall(ValueError):
    """A tool call that cannot be read; the message is for the policy, which may mend it."""


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


def parse_turn(text: str, plain: Mapping[str, str] | None = None) -> Turn:
    """Reads a turn, in time linear in its length. What stands inside the thought is never a call.

    Args:
        text: The turn, without its end-of-turn token.
        plain: Tools whose ReAct input may be plain text, each with the argument that takes it. An input that begins
            with a brace or a bracket is JSON all the same, so that a cut object never becomes a text.

    Raises:
        MalformedCall: if a thought or a call is cut, a call is no JSON object with a name and arguments, or the turn
            both calls and answers.
    """
    before, closed, rest = text.partition(_END_THINK)
    thought, rest = (before.replace(_THINK, "", 1).strip(), rest) if closed else ("", text)
    calls, left = _tagged_calls(rest)
    if _THINK in left or _END_THINK in left:
        raise MalformedCall("the thought does not end, or ends twice")
    action, final = _ACTION.search(left), _FINAL.search(left)
    if action or final:
        first = min(match.start() for match in (action, final) if match)
        thought = thought or left[:first].strip()
    if not action and _HALF_ACTION.search(left):
        raise MalformedCall("an action has no name or no input")
    if (calls and (action or final)) or (action and final):
        raise MalformedCall("one turn holds two calls of different forms, or a call and a final answer")
    if action:
        return Turn(thought, (_react_call(action[1], left[action.end() :].strip(), plain or {}),), "")
    if final:
        return Turn(thought, (), left[final.end() :].strip())
    if not calls:
        calls, left = _bare_calls(left)
    elif _TAG in left:
        raise MalformedCall(f"{_TAG} stands beside another call")
    return Turn(thought, calls, left.strip())


def _tagged_calls(text: str) -> tuple[tuple[Call, ...], str]:
    """The calls between Hermes' tags, and the text around them. Tags inside of JSON strings are text."""
    calls: list[Call] = []
    left: list[str] = []
    at = 0
    while (begin := text.find(_OPEN, at)) >= 0:
        left.append(text[at:begin])
        value, end = _json(text, begin + len(_OPEN), "a tool call")
        if not text.startswith(_CLOSE, end):
            raise MalformedCall(f"a tool call does not end with {_CLOSE}")
        calls.append(_call(value))
        at = end + len(_CLOSE)
    left.append(text[at:])
    if _CLOSE in text[at:]:
        raise MalformedCall(f"a tool call does not begin with {_OPEN}")
    return tuple(calls), "".join(left)


def _bare_calls(text: str) -> tuple[tuple[Call, ...], str]:
    """The calls of a turn in Llama's form, and the text before them."""
    before, tag, body = text.partition(_TAG)
    if not tag:
        before, body = "", text.lstrip("` \n").removeprefix("json").lstrip()
        if not _BARE.match(body):
            if not (named := _NAMED.search(text)):
                return (), text
            begin = named.start()
            begin = len(text[:begin].rstrip()) - 1 if text[:begin].rstrip().endswith("[") else begin
            before, body = text[:begin].rstrip("` \n").removesuffix("```json"), text[begin:]
    for end in _ENDS:
        body = body.rstrip().removesuffix(end)
    body = body.rstrip("` \n")
    calls: list[Call] = []
    at = 0
    while at < len(body) or not calls:
        value, at = _json(body, at, "a tool call")
        calls += map(_call, value if isinstance(value, list) and value else [value])
        at = _BETWEEN.match(body, at).end()  # type: ignore[union-attr]
    return tuple(calls), before


def _call(value: Any) -> Call:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]  # {"type": "function", "function": {...}}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise MalformedCall("a tool call has no name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) == 1 and isinstance(given[0], str):  # some models write the object as a JSON string
        given = [_whole_json(given[0], f"the arguments of {value['name'][:100]}")]
    if len(given) != 1 or not isinstance(given[0], dict):
        raise MalformedCall(f"the arguments of {value['name'][:100]} are no object")
    return Call(value["name"], given[0])


def _react_call(name: str, body: str, plain: Mapping[str, str]) -> Call:
    """A ReAct action, whose input is a JSON object, or plain text for the tools that take it."""
    if name in plain and body and body[0] not in "{[":
        if _NEXT.search(body):
            raise MalformedCall(f"the input of {name} runs into another step")
        argument = _whole_json(body, f"the input of {name}") if body[0] == body[-1] == '"' and len(body) > 1 else body
        return Call(name, {plain[name]: argument})
    arguments = _whole_json(body, f"the input of {name[:100]}")
    if not isinstance(arguments, dict):
        raise MalformedCall(f"the input of {name[:100]} is no object")
    return Call(name, arguments)


def _whole_json(text: str, what: str) -> Any:
    value, end = _json(text, 0, what)
    if end < len(text):
        raise MalformedCall(f"text follows {what}")
    return value


def _json(text: str, begin: int, what: str) -> tuple[Any, int]:
    """The JSON value at `begin`, and where it ends, blanks around it skipped."""
    try:
        value, end = _DECODER.raw_decode(text, _BLANKS.match(text, begin).end())  # type: ignore[union-attr]
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"{what} is no JSON: {str(error)[:200]}") from None
    return value, _BLANKS.match(text, end).end()  # type: ignore[union-attr]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_BLANKS = re.compile(r"\s*")
# Not strict: models write code with its line breaks and tabs as they are, which can be read in one way only.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, strict=False)
