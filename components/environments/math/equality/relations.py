"""Equations and inequalities: the value that one names, and whether two say the same."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mpmath import mp  # type: ignore

from components.environments.math.equality import scalars
from components.environments.math.equality.evaluate import Evaluation, NoValue, exact
from components.environments.math.equality.regions import is_region, same_region
from components.environments.math.equality.tree import SCALARS, Node, shown

Same = Callable[[Node, Node], bool]
_EQUALITIES = {"=", "~"}


def relations(gold: Node, answer: Node, same: Same) -> bool:
    """Whether two answers agree of which one at least is an equation or inequality.

    Args:
        gold: It may be answered by the value or the interval that it names.
        answer: It may name the value that is wanted.
        same: Compares what they hold.
    """
    if gold.op == answer.op:
        return _both(gold, answer, same)
    if answer.op == "rel":
        if answer.text == "in":
            return same(gold, answer.args[1])
        if set(answer.text.split()) <= _EQUALITIES:
            return any(same(gold, value) for value in values(answer, strict=False))
        return (is_region(gold) or gold.op == "list") and same_region(gold, answer)
    if gold.text == "in":
        return same(gold.args[1], answer)
    if set(gold.text.split()) <= _EQUALITIES:
        found = values(gold, strict=True)
        if any(value.op == "quantity" and value.text.startswith("|") for value in found) and answer.op != "quantity":
            return False  # n = 4 wins
        return any(same(value, answer) for value in found)
    return same_region(gold, answer)


def _both(gold: Node, answer: Node, same: Same) -> bool:
    signs = {*gold.text.split(), *answer.text.split()}
    if signs <= _EQUALITIES:
        names = [_name(node) for node in (gold, answer)]
        if all(names):
            function = {names[0], names[1]} - {"y"}  # y = 2x is f(x) = 2x
            alike = names[0] == names[1] or (len(function) == 1 and "(" in max(function))
            if alike and any(same(x, y) for x in values(gold, True) for y in values(answer, True)):
                return True
        return _proportional(gold, answer, signed=False)
    if same_region(gold, answer):
        return True
    if "in" in signs:
        return len(signs) == 1 and same(gold.args[0], answer.args[0]) and same(gold.args[1], answer.args[1])
    mine, theirs = _oriented(gold), _oriented(answer)
    if len(mine.args) > 2:
        return (
            mine.text == theirs.text and len(mine.args) == len(theirs.args) and all(map(same, mine.args, theirs.args))
        )
    return mine.text == theirs.text and _proportional(mine, theirs, signed=mine.text != "!=")


def _oriented(node: Node) -> Node:
    """An inequality with < or <=, or a chain of them."""
    flipped = [{">": "<", ">=": "<="}.get(sign, "") for sign in reversed(node.text.split())]
    return Node("rel", node.args[::-1], " ".join(flipped)) if all(flipped) else node


def _name(node: Node) -> str:
    """What an equation names, as in x = 5, f(x) = 2x, AB = 3, (x, y) = (1, 2); nothing for other equations."""
    for side in (node.args[0], node.args[-1]):
        words = [part for part in side.walk() if part.op in ("name", "label")]
        if side.op in ("name", "label") or (side.op == "group" and len(words) == len(side.args)):
            return shown(side)
        if side.op == "mul" and all(part.op in ("mul", "name") for part in side.walk()) and words[0].text.isupper():
            return shown(side)  # a segment, or P(A)
        if side.op == "div" and all(part.op == "name" and part.text[0] == "d" for part in side.args):
            return shown(side)  # dy/dx
        if side.op == "mul" and [part.op for part in side.args] == ["name", "num"]:
            return shown(side)  # T(3)
    return ""


def values(node: Node, strict: bool) -> list[Node]:
    """The values that an equation gives; none where it is no definition, or where its sides contradict each other.

    Args:
        node: An equation, perhaps of many sides.
        strict: Whether only a name may be defined, not a sum or product of names such as a + b either.
    """
    sides = list(node.args)
    if _name(node) or (not strict and _of_names(sides[0])):
        sides = sides[1:] if _of_names(sides[0]) or _name(Node("rel", (sides[0], sides[0]))) else sides[:-1]
    elif any(side.names() for side in sides):
        return []
    if any(side.op not in SCALARS or side.names() for side in sides):
        return sides[-1:]
    anchor = next((side for side in sides if scalars.decimal(side) is None), sides[0])
    return [anchor, *(s for s in sides if s is not anchor)] if all(_near(anchor, side) for side in sides) else []


def _of_names(node: Node) -> bool:
    """Whether an expression holds names and no numbers."""
    parts = list(node.walk())
    return bool(node.names() or node.op == "label") and all(
        part.op in ("name", "label", "add", "neg", "mul", "div", "group", "call") for part in parts
    )


def _near(exactly: Node, side: Node) -> bool:
    """Whether a side of an equation is worth the exact one, or is a decimal near it."""
    if scalars.equal(exactly, side):
        return True
    found, value = scalars.decimal(side), exact(side)
    if found is None or value is None:
        return False
    try:
        meant, _ = Evaluation(50).value(exactly)
    except NoValue:
        return False
    return bool(abs(meant - _number(value)) <= _number(found[1]))


def _number(value: Any) -> Any:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _proportional(gold: Node, answer: Node, signed: bool) -> bool:
    """Whether the differences of the sides differ by a constant factor only, above zero if `signed`."""
    if len(gold.args) != 2 or len(answer.args) != 2 or any(side.op not in SCALARS for side in gold.args + answer.args):
        return False
    one, other = (Node("add", (node.args[0], Node("neg", node.args[1:]))) for node in (gold, answer))
    if not one.names() or not other.names():
        return False
    first: list[Any] = []

    def compare(x: Any, y: Any) -> tuple[Any, Any]:
        if not x or not y:
            return x, y
        if not first:
            first.extend([x, y])
            return (0, 1) if signed and not isinstance(x / y, mp.mpc) and x / y < 0 else (1, 1)
        if not all(isinstance(value, Fraction) for value in (x, y, *first)):
            x, y, first[:] = _number(x), _number(y), map(_number, first)
        return x * first[1], y * first[0]

    try:
        return scalars.agree(one, other, compare)
    except NoValue:
        return False
