"""Reading the function calls of a turn, and writing the calls of a rollout as text.

Besides the forms of `components.environments.parsing`, those that the Berkeley leaderboard asks for are read, as its
decoder reads them: a list, with or without its brackets or the last of them.

    [cd(folder="documents"), mkdir(dir_name="old")]

It is parsed, never evaluated. An argument is a literal; a name or a call without keywords stands for its own text, a
call with keywords for an object, and sums and products of numbers for their value. Arguments given by position, which
that decoder drops, get their names. What is kept is JSON-like, with finite numbers, so that a call written to text and
read again is the same call.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.parsing import Call, MalformedCall, parse_turn

MAX_CHARACTERS = 65_536  # of one turn: parsing time grows with it
MAX_CALLS = 64  # in one turn; the longest ground truth of the leaderboard has 34
MAX_DEPTH = 32  # of nested arguments
MAX_BITS = 10_000  # of a number that is computed

Step = tuple[Call, ...]
Turns = Sequence[Sequence[Sequence[Call]]]  # user's turn, step of the policy in it, call

_NAME = r"([A-Za-z_][\w.]*)\("
_CALL, _LIST, _ANY_LIST = re.compile(_NAME), re.compile(rf"\[\s*{_NAME}"), re.compile(rf"\[{_NAME}")
_ARITHMETIC: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


def read_calls(text: str, parameters: Mapping[str, Sequence[str]]) -> tuple[Call, ...]:
    """The calls that a turn makes, in order; none where it is an answer.

    Args:
        text: The turn.
        parameters: Names of each known function's parameters, for arguments given by position.

    Raises:
        MalformedCall: if a call is cut or no call, stands in the middle of a text, has an argument that is no JSON-like
            value, or there are more characters or calls than the limits above.
    """
    if len(text) > MAX_CHARACTERS:
        raise MalformedCall(f"a turn of {len(text)} characters; at most {MAX_CHARACTERS} are read")
    if text.count("<tool_call>") > MAX_CALLS:
        raise MalformedCall(f"more than {MAX_CALLS} calls in one turn")
    turn = parse_turn(text)
    calls = turn.calls or _python_form(turn.text, parameters)
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


def _python_form(text: str, parameters: Mapping[str, Sequence[str]]) -> tuple[Call, ...]:
    text = text.strip("` \n").removeprefix("python").strip()
    listed, bare = _LIST.match(text), _CALL.match(text)
    if not listed and not bare:
        if (inside := _ANY_LIST.search(text)) and inside[1] in parameters:
            raise MalformedCall(f"text stands before [{inside[1]}(...; write calls alone")
        return ()
    text = text if listed else f"[{text}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes in the text
            tree = ast.parse(text if text.endswith("]") else f"{text}]", mode="eval").body
        if not isinstance(tree, ast.List):
            raise MalformedCall("calls that are no list")
        return tuple(_call(node, parameters) for node in tree.elts)
    except (MalformedCall, SyntaxError, ValueError, TypeError, RecursionError, MemoryError, ArithmeticError) as error:
        if bare and bare[1] not in parameters:
            return ()  # prose, such as "f(x) is a function"
        reason = str(error) if isinstance(error, MalformedCall) else f"calls that cannot be read: {str(error)[:200]}"
        raise MalformedCall(reason) from None


def _call(node: ast.expr, parameters: Mapping[str, Sequence[str]]) -> Call:
    if not isinstance(node, ast.Call):
        raise MalformedCall("an element of the list is no call")
    name = _dotted(node.func)
    known = parameters.get(name, ())
    arguments: dict[str, Any] = {}
    for index, value in enumerate(node.args):  # one too many gets a name that no function has
        arguments[known[index] if index < len(known) else f"argument_{index}"] = _value(value)
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise MalformedCall(f"an argument of {name} has no name of its own")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(name, arguments)


def _value(node: ast.expr) -> Any:
    """What an argument stands for."""
    match node:
        case ast.Constant(value=value):
            return "..." if value is ... else value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)):
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=sign, right=right):
            return _computed(type(sign), _value(left), _value(right))
        case ast.Call(keywords=[_, *_]):
            call = _call(node, {})
            return {call.name: call.arguments}
        case ast.Call() | ast.Subscript():
            return ast.unparse(node)
    raise MalformedCall(f"an argument is no value: {ast.unparse(node)[:80]}")


def _computed(sign: type[ast.operator], left: Any, right: Any) -> Any:
    """The value of a sum, a product or the like of two small numbers, or of two texts put together."""
    if sign is ast.Add and isinstance(left, str) and isinstance(right, str):
        return left + right
    if sign not in _ARITHMETIC or not all(isinstance(value, int | float) for value in (left, right)):
        raise MalformedCall("an argument computes with something else than numbers")
    bits = int(left).bit_length(), int(right).bit_length()
    if (bits[0] * abs(right) if sign is ast.Pow else sum(bits)) > MAX_BITS:
        raise MalformedCall("an argument computes with large numbers")
    return _ARITHMETIC[sign](left, right)


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
