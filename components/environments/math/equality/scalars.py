"""Whether two expressions have one value: exactly, to a thousand digits, or at many points of their variables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from mpmath import mp  # type: ignore

from components.environments.math.equality.evaluate import Evaluation, Lost, NoValue, exact
from components.environments.math.equality.pieces import DIGITS
from components.environments.math.equality.tree import Node, call, infinite, rewrite

PRECISIONS = (50, 1000)  # digits: enough to tell most values apart, and values that differ by 1e-300
ROUNDED_DIGITS = 6  # that a decimal must show to stand for a value with endless digits
DOUBLE_DIGITS = 15  # that a double holds: such a decimal may stand for any value
_NEEDED = 3  # points at which two expressions must have real values


def equal(gold: Node, answer: Node) -> bool:
    """Whether two scalars are worth the same; variables are real, and positive where only then both have values."""
    if gold == answer:
        return True
    if one := infinite(gold) or infinite(answer):
        return one == infinite(gold) == infinite(answer)
    if any(node.op == "call" and node.text == "log" and len(node.args) == 1 for node in (*gold.walk(), *answer.walk())):
        # A logarithm without a base has the base e for some and ten for others.
        return any(equal(rewrite(gold, based), rewrite(answer, based)) for based in (_natural, _common))
    try:
        if gold.names() | answer.names():
            return agree(gold, answer, lambda x, y: (x, y))
        return _constants(gold, answer)
    except NoValue:
        return False


def _natural(node: Node) -> Node:
    return call("ln", *node.args) if node.text == "log" and len(node.args) == 1 else node


def _common(node: Node) -> Node:
    ten = Node("num", number=Fraction(10))
    return call("log", *node.args, ten) if node.text == "log" and len(node.args) == 1 else node


def _constants(gold: Node, answer: Node) -> bool:
    one, other = exact(gold), exact(answer)
    shown = [decimal(node) for node in (gold, answer)]
    if one is not None and other is not None:
        if one == other:
            return True
        if _plain(gold) and _plain(answer):  # 17.999999999999996 is what a double makes of 18
            noisy = any(found and found[0] > DOUBLE_DIGITS for found in shown)
            return noisy and abs(one - other) <= abs(other) / 10**DOUBLE_DIGITS
    for (found, value), expression in zip(zip(shown, (one, other), strict=True), (answer, gold), strict=True):
        if found and value is not None and not _plain(expression):
            return _stands_for(value, *found, expression)
    return False if one is not None and other is not None else _close(gold, answer)


def _plain(node: Node) -> bool:
    """Whether it is a number as written, with its sign and power of ten, and no arithmetic."""
    while node.op in ("neg", "pct"):
        node = node.args[0]
    return node.op == "num" or decimal(node) is not None


def decimal(node: Node) -> tuple[int, Fraction] | None:
    """The significant digits of a decimal and the worth of its last one; None for another expression."""
    if node.op == "neg":
        return decimal(node.args[0])
    if node.op == "pct":
        found = decimal(node.args[0])
        return found and (found[0], found[1] / 100)
    if node.op == "mul" and node.args[1].op == "pow" and node.args[1].args[0].number == 10:
        power = exact(node.args[1].args[1])
        found = _digits(node.args[0])
        if found is None or power is None or power.denominator != 1 or abs(power) > 2000:
            return None
        return found[0], found[1] * Fraction(10) ** power.numerator
    return _digits(node) if set(".eE") & {*node.source} else None


def _digits(node: Node) -> tuple[int, Fraction] | None:
    while node.op == "neg":
        node = node.args[0]
    if node.op != "num" or not node.source:
        return None
    mantissa, _, exponent = node.source.lower().partition("e")
    whole, _, part = mantissa.partition(".")
    return len((whole + part).lstrip("0")), Fraction(10) ** (int(exponent or 0) - len(part))


def _stands_for(value: Fraction, digits: int, last: Fraction, expression: Node) -> bool:
    """Whether a decimal is the expression's value, rounded or cut off, with digits enough to say so."""
    meant = exact(expression)
    if meant is None:
        evaluation = Evaluation(PRECISIONS[0])
        found, _ = evaluation.value(expression)
        if not isinstance(found, mp.mpf) or abs(found.exp) > 10 * DIGITS:
            return False
        mantissa, power = int(found.man) * (-1 if found < 0 else 1), int(found.exp)
        meant = Fraction(mantissa) * Fraction(2) ** power
        ends = False
    else:
        ends = _ends(meant.denominator)
    if digits < (DOUBLE_DIGITS if ends else ROUNDED_DIGITS):
        return False
    slack = abs(meant) / 10**DOUBLE_DIGITS if digits >= DOUBLE_DIGITS else Fraction(0)
    cut_off = value * meant > 0 and abs(value) <= abs(meant) < abs(value) + last
    return cut_off or abs(value - meant) <= max(last / 2, slack)


def _ends(denominator: int) -> bool:
    """Whether a fraction with this denominator has a decimal that ends."""
    while denominator % 10 == 0:
        denominator //= 10
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _close(gold: Node, answer: Node) -> bool:
    for digits in PRECISIONS:
        try:
            (x, dx), (y, dy) = (Evaluation(digits).value(node) for node in (gold, answer))
        except Lost:
            sure = False
            continue
        with mp.workdps(digits + 10):
            if abs(x - y) > 8 * (dx + dy):
                return False
            sure = dx + dy < max(1, abs(x), abs(y)) * mp.mpf(10) ** (-digits // 3)
    return bool(sure)


def agree(gold: Node, answer: Node, compare: Callable[[Any, Any], tuple[Any, Any]]) -> bool:
    """Whether two expressions agree wherever both have real values.

    Args:
        gold: The one.
        answer: The other.
        compare: Makes of their values at a point the two numbers that must be the same.

    Raises:
        NoValue: if the values are too large, or too close to tell apart.
    """
    imaginary = any(node.op == "const" and node.text == "i" for node in (*gold.walk(), *answer.walk()))
    real = other = 0
    for point in _points(sorted(gold.names() | answer.names())):
        try:
            verdict, is_real = _at(gold, answer, point, compare)
        except Lost:
            raise
        except NoValue:
            continue
        if is_real or imaginary:
            if not verdict:
                return False
            real += 1
        elif all(value > 0 for value in point.values()):
            other += 1 if verdict else -100
    return real >= _NEEDED or real + other >= _NEEDED


def _at(
    gold: Node, answer: Node, point: dict[str, Fraction], compare: Callable[[Any, Any], tuple[Any, Any]]
) -> tuple[bool, bool]:
    one, other = exact(gold, point), exact(answer, point)
    if one is not None and other is not None:
        x, y = compare(one, other)
        return x == y, True
    for digits in (40, 300):
        first, second = Evaluation(digits, point), Evaluation(digits, point)
        try:
            (x, dx), (y, dy) = first.value(gold), second.value(answer)
            break
        except Lost:
            if digits == 300:
                raise
    with mp.workdps(digits + 10):
        x, y = compare(x, y)
        slack = 8 * (dx + dy) + (abs(x) + abs(y)) * mp.mpf(10) ** (8 - digits)
        return abs(x - y) <= slack < mp.mpf(10) ** (-digits // 3) * max(1, abs(x), abs(y)), first.real and second.real


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Values for names, the same in every process: positive ones first, whole ones among them, then negative ones."""
    draw = random.Random(7)
    for low, high, below in [(50, 400, 97), (5, 90, 101), (40, 300, 89), (2, 9, 1), (100, 900, 103), (3, 12, 1),
                             (4, 15, 1), (-300, -40, 97), (-90, 300, 101), (-300, 90, 89), (-9, -2, 1)]:  # fmt: skip
        values = draw.sample(range(low, high), min(len(names), high - low))
        values += [draw.randrange(low, high) for _ in range(len(names) - len(values))]
        yield {name: Fraction(value or 1, below) for name, value in zip(names, values, strict=True)}
