"""Reading the function calls of a turn, and writing the calls of a rollout as text.

Besides the forms of `components.environments.parsing`, the list form of the Berkeley leaderboard is read:

    [cd(folder="documents"), mkdir(dir_name="old")]

It is parsed, never evaluated: arguments are literals. What is kept of any call is JSON-like, with finite numbers, so
that a call written to text and read again is the same call.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.parsing import Call, MalformedCall, parse_turn

MAX_CHARACTERS = 65_536  # of one turn: parsing time grows with it
MAX_CALLS = 64  # in one turn; the longest ground truth of the leaderboard has 34
MAX_DEPTH = 32  # of nested arguments

Turns = Sequence[Sequence[Sequence[Call]]]  # user's turn, step of the policy in it, call

_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")


def read_calls(text: str, parameters: Mapping[str, Sequence[str]]) -> tuple[Call, ...]:
    """The calls that a turn makes, in order; none where it is an answer.

    Args:
        text: The turn.
        parameters: Names of each function's parameters, for arguments given by position.

    Raises:
        MalformedCall: if a call is cut or no call, an argument is no literal or no JSON-like value, or there are more
            characters or calls than the limits above.
    """
    if len(text) > MAX_CHARACTERS:
        raise MalformedCall(f"a turn of {len(text)} characters; at most {MAX_CHARACTERS} are read")
    if text.count("<tool_call>") > MAX_CALLS:
        raise MalformedCall(f"more than {MAX_CALLS} calls in one turn")
    turn = parse_turn(text)
    calls = turn.calls or _list_form(turn.text, parameters)
    if len(calls) > MAX_CALLS:
        raise MalformedCall(f"more than {MAX_CALLS} calls in one turn")
    return tuple(Call(_plain(call.name), _plain(call.arguments)) for call in calls)


def hermes(calls: Sequence[Call]) -> str:
    """The calls as a turn's text in the Hermes form."""
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': c.arguments})}\n</tool_call>" for c in calls
    )


def write_turns(turns: Turns) -> str:
    """JSON text of all calls of a rollout."""
    return json.dumps(
        [[[{"name": c.name, "arguments": c.arguments} for c in step] for step in turn] for turn in turns],
        allow_nan=False,
    )


def read_turns(text: str) -> list[list[list[Call]]]:
    """What `write_turns` wrote."""
    return [[[Call(c["name"], c["arguments"]) for c in step] for step in turn] for turn in json.loads(text)]


def _list_form(text: str, parameters: Mapping[str, Sequence[str]]) -> tuple[Call, ...]:
    text = text.strip("` \n").removeprefix("python").strip()
    if not _LIST.match(text):
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes in the text
            tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List):
            raise MalformedCall("calls that are no list")
        return tuple(_call(node, parameters) for node in tree.elts)
    except MalformedCall:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise MalformedCall(f"calls that cannot be read: {str(error)[:200]}") from None


def _call(node: ast.expr, parameters: Mapping[str, Sequence[str]]) -> Call:
    if not isinstance(node, ast.Call):
        raise MalformedCall("an element of the list is no call")
    name = _dotted(node.func)
    known = parameters.get(name, ())
    arguments: dict[str, Any] = {}
    for index, value in enumerate(node.args):  # one too many gets a name that no function has
        arguments[known[index] if index < len(known) else f"argument_{index}"] = ast.literal_eval(value)
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise MalformedCall(f"an argument of {name} has no name of its own")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return Call(name, arguments)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise MalformedCall("a call of something that is no name")
    return ".".join([node.id, *reversed(parts)])


def _plain(value: Any, depth: int = 0) -> Any:
    """The value with lists for tuples; raises where it is not JSON-like."""
    if depth > MAX_DEPTH:
        raise MalformedCall(f"arguments nested deeper than {MAX_DEPTH}")
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if value.isascii() or value.encode("utf-8", "replace").decode() == value:
            return value  # no half of a surrogate pair, which no file could hold
        case list() | tuple():
            return [_plain(item, depth + 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {_plain(key): _plain(item, depth + 1) for key, item in value.items()}
    raise MalformedCall(f"an argument is no JSON-like value: {type(value).__name__}")
