"""Sets of real numbers as intervals: what inequalities, unions and "all but two" have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cmp_to_key
from typing import Any

from mpmath import mp  # type: ignore

from components.environments.math.equality.evaluate import Evaluation, NoValue
from components.environments.math.equality.scalars import equal
from components.environments.math.equality.tree import INFINITY, Node, infinite

_REALS = "mathbb{R}"
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


@dataclass(frozen=True)
class End:
    """An end of an interval, and whether it belongs to it."""

    node: Node
    closed: bool

    @property
    def value(self) -> Any:
        if sign := infinite(self.node):
            return sign * mp.inf
        evaluation = Evaluation(50)
        value, _ = evaluation.value(self.node)
        if not evaluation.real:
            raise NoValue("an end that is not real")
        return value


Interval = tuple[End, End]
_LOWEST, _HIGHEST = End(Node("neg", (INFINITY,)), False), End(INFINITY, False)


def region(node: Node) -> tuple[list[Interval], str] | None:
    """The intervals of a set of numbers, in order and apart, and the variable that lies in them, if it is named.

    None where the node is no such set, or its ends hold variables.
    """
    try:
        found = _region(node)
        return None if found is None else (_merge(found[0]), found[1])
    except NoValue:
        return None


def same_region(gold: Node, answer: Node) -> bool:
    """Whether two sets of numbers are one."""
    one, other = region(gold), region(answer)
    if one is None or other is None or (one[1] and other[1] and one[1] != other[1]) or len(one[0]) != len(other[0]):
        return False
    return all(
        first.closed == second.closed and equal(first.node, second.node)
        for mine, theirs in zip(one[0], other[0], strict=True)
        for first, second in zip(mine, theirs, strict=True)
    )


def is_region(node: Node) -> bool:
    """Whether a node can only be a set of numbers: (1,2) may be a point, (1,2] and (1, infinity) cannot."""
    if node.op == "group":
        return len(node.args) == 2 and (node.text != "()" or any(map(infinite, node.args)))
    return node.op in ("union", "cut", "minus") or node == Node("name", text=_REALS)


def _region(node: Node) -> tuple[list[Interval], str] | None:
    if node == Node("name", text=_REALS):
        return [(_LOWEST, _HIGHEST)], ""
    if node.op == "group" and len(node.args) == 2:
        low, high = node.args
        return [(End(low, node.text[0] == "["), End(high, node.text[1] == "]"))], ""
    if node.op == "set":
        return [(End(part, True), End(part, True)) for part in node.args], ""
    if node.op == "add" and node.args[1].op == "neg":  # R - {2}
        node = Node("minus", (node.args[0], node.args[1].args[0]))
    if node.op in ("union", "cut", "minus"):
        return _combine(node.op, [_region(part) for part in node.args])
    if node.op == "list" and node.text in ("or", "and", ","):
        return _combine("cut" if node.text == "and" else "union", [_region(part) for part in node.args])
    return _inequality(node) if node.op == "rel" else None


def _combine(op: str, parts: list[tuple[list[Interval], str] | None]) -> tuple[list[Interval], str] | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({name for _, name in known if name}) > 1:
        return None
    result = known[0][0]
    for more, _ in known[1:]:
        result = [*result, *more] if op == "union" else _common(result, _complement(more) if op == "minus" else more)
    return result, max(name for _, name in known)


def _inequality(node: Node) -> tuple[list[Interval], str] | None:
    signs = node.text.split()
    if signs == ["in"] and node.args[0].op == "name":
        inside = _region(node.args[1])
        return inside and (inside[0], node.args[0].text)
    at = next((n for n, side in enumerate(node.args) if side.op == "name"), None)
    if at is None or not set(signs) <= set(_FLIPPED) or any(s.names() for n, s in enumerate(node.args) if n != at):
        return None
    if len(node.args) > 3 or (len(node.args) == 3 and at != 1):
        return None
    result = [(_LOWEST, _HIGHEST)]
    for n, sign in enumerate(signs):
        side, sign = (node.args[n], _FLIPPED[sign]) if n < at else (node.args[n + 1], sign)
        below, above = (_LOWEST, End(side, sign == "<=")), (End(side, sign == ">="), _HIGHEST)
        result = _common(result, [below, above] if sign == "!=" else [below if sign[0] == "<" else above])
    return result, node.args[at].text


def _order(one: End, other: End) -> int:
    return 0 if equal(one.node, other.node) else -1 if one.value < other.value else 1


def _empty(interval: Interval) -> bool:
    low, high = interval
    order = _order(low, high)
    return order > 0 or (order == 0 and not (low.closed and high.closed))


def _common(first: list[Interval], second: list[Interval]) -> list[Interval]:
    result = []
    for one in first:
        for other in second:
            lower, upper = _order(one[0], other[0]), _order(one[1], other[1])
            low = (one[0], other[0])[lower < 0] if lower else replace(one[0], closed=one[0].closed and other[0].closed)
            high = (one[1], other[1])[upper > 0] if upper else replace(one[1], closed=one[1].closed and other[1].closed)
            if not _empty((low, high)):
                result.append((low, high))
    return result


def _complement(intervals: list[Interval]) -> list[Interval]:
    result = [(_LOWEST, _HIGHEST)]
    for low, high in intervals:
        outside = [(_LOWEST, replace(low, closed=not low.closed)), (replace(high, closed=not high.closed), _HIGHEST)]
        result = _common(result, [part for part in outside if not _empty(part)])
    return result


def _merge(intervals: list[Interval]) -> list[Interval]:
    """Sorted, and joined where two touch."""
    result: list[Interval] = []
    by_start: Callable[[Interval, Interval], int] = lambda one, other: _order(one[0], other[0])  # noqa: E731
    for low, high in sorted(intervals, key=cmp_to_key(by_start)):
        if not result:
            result.append((low, high))
            continue
        start, stop = result[-1]
        order = _order(stop, low)
        if order < 0 or (order == 0 and not (stop.closed or low.closed)):
            result.append((low, high))
            continue
        if _order(start, low) == 0:
            start = replace(start, closed=start.closed or low.closed)
        further = _order(stop, high)
        if further == 0:
            stop = replace(stop, closed=stop.closed or high.closed)
        result[-1] = (start, stop if further > 0 else high if further < 0 else stop)
    return result
