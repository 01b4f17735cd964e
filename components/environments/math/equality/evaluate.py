"""What an expression is worth: exactly where it is rational, else to many digits with a bound on the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import gcd, isqrt, lcm
from typing import Any

from mpmath import mp  # type: ignore

from components.environments.math.equality.tree import Node

BITS = 200_000  # of an exact number
LARGEST = 10**12  # of an exponent that is not exact, or of a factorial
_POINTS: dict[str, Fraction] = {}


class NoValue(ValueError):
    """An expression without a value, such as 1/0, or with one too large to write."""


class Lost(NoValue):
    """A summand too small for the precision at hand."""


def exact(node: Node, point: Mapping[str, Fraction] = _POINTS) -> Fraction | None:
    """The value of an expression that is rational step by step; None for another.

    Args:
        node: A scalar.
        point: The values of its names.

    Raises:
        NoValue: if it has none, or one of more than `BITS` bits.
    """
    if node.op == "num":
        return node.number
    if node.op == "name":
        return point.get(node.text)
    if node.op not in ("add", "neg", "mul", "div", "pow", "pct", "call"):
        return None
    values = []
    for part in node.args:
        if (value := exact(part, point)) is None:
            return None
        values.append(value)
    result = _exact(node, values)
    if result is not None and max(result.numerator.bit_length(), result.denominator.bit_length()) > BITS:
        raise NoValue("too large")
    return result


def _exact(node: Node, values: list[Fraction]) -> Fraction | None:
    first = values[0]
    if node.op == "add":
        return first + values[1]
    if node.op == "neg":
        return -first
    if node.op == "mul":
        return first * values[1]
    if node.op == "pct":
        return first / 100
    if node.op == "div":
        if not values[1]:
            raise NoValue("division by zero")
        return first / values[1]
    if node.op == "pow":
        return _power(first, values[1])
    whole = all(value.denominator == 1 for value in values)
    integers = [value.numerator for value in values]
    match node.text:
        case "abs":
            return abs(first)
        case "floor":
            return Fraction(first.numerator // first.denominator)
        case "ceil":
            return Fraction(-(-first.numerator // first.denominator))
        case "sign":
            return Fraction((first > 0) - (first < 0))
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "root":
            return _power(first, 1 / values[1]) if values[1] else None
        case "fact" | "fact2" if whole:
            return _factorial(integers[0], 1 if node.text == "fact" else 2)
        case "gcd" if whole:
            return Fraction(gcd(*integers))
        case "lcm" if whole:
            return Fraction(lcm(*integers))
        case "binom" | "perm" if whole:
            return _choose(integers[0], integers[1], ordered=node.text == "perm")
        case "log" if len(values) == 2:
            return _logarithm(first, values[1])
    return None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _root(base, exponent.denominator)
        return None if root is None else _power(root, Fraction(exponent.numerator))
    if not base:
        if exponent < 0:
            raise NoValue("division by zero")
        return Fraction(exponent == 0)
    size = max(base.numerator.bit_length(), base.denominator.bit_length()) - (abs(base) == 1)
    return base**exponent.numerator if size * abs(exponent) <= BITS else None


def _root(base: Fraction, degree: int) -> Fraction | None:
    """An exact real root; None where there is none."""
    if base < 0:
        opposite = _root(-base, degree) if degree % 2 else None
        return None if opposite is None else -opposite
    if degree > 64:
        return None
    parts: list[int] = []
    for part in (base.numerator, base.denominator):
        root = isqrt(part) if degree == 2 else _whole_root(part, degree)
        if root**degree != part:
            return None
        parts.append(root)
    return Fraction(*parts)


def _whole_root(value: int, degree: int) -> int:
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low


def _factorial(n: int, step: int) -> Fraction | None:
    if n < 0:
        raise NoValue("a factorial of a negative number")
    if n > 5000:
        return None
    product = 1
    for factor in range(n, 0, -step):
        product *= factor
    return Fraction(product)


def _choose(n: int, k: int, ordered: bool) -> Fraction | None:
    if not 0 <= k <= n:
        return Fraction(0) if n >= 0 else None
    k = k if ordered else min(k, n - k)
    if k > 5000:
        return None
    result = 1
    for index in range(k):
        result = result * (n - index) // (1 if ordered else index + 1)
    return Fraction(result)


def _logarithm(value: Fraction, base: Fraction) -> Fraction | None:
    if value <= 0 or base <= 0 or base == 1:
        raise NoValue("a logarithm")
    guess = round(
        mp.log(mp.mpf(value.numerator) / value.denominator) / mp.log(mp.mpf(base.numerator) / base.denominator)
    )
    return Fraction(guess) if abs(guess) < 5000 and base**guess == value else None


_CONSTANTS: dict[str, Callable[[], Any]] = {"pi": lambda: +mp.pi, "e": lambda: +mp.e, "i": lambda: mp.mpc(0, 1)}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    name: getattr(mp, name.replace("arc", "a")) for prefix in ("", "arc") for suffix in ("", "h")
    for base in ("sin", "cos", "tan", "cot", "sec", "csc") for name in [prefix + base + suffix]
}  # fmt: skip
_FUNCTIONS |= {"ln": mp.log, "abs": abs, "fact": mp.factorial, "fact2": mp.fac2, "sign": mp.sign}


class Evaluation:
    """Evaluates to a number of digits.

    Args:
        digits: The decimal digits that are carried.
        point: The values of names.

    Attributes:
        real: Whether every intermediate value was real.
    """

    def __init__(self, digits: int, point: Mapping[str, Fraction] = _POINTS) -> None:
        self.digits, self.point, self.real = digits, point, True
        self.step = mp.mpf(10) ** (5 - digits)  # a generous bound on the relative error of one operation

    def value(self, node: Node) -> tuple[Any, Any]:
        """The value and a bound on its absolute error, at the precision that `mp.dps` is set to.

        Raises:
            NoValue: if there is none, or the precision does not suffice.
        """
        with mp.workdps(self.digits + 10):
            try:
                return self._value(node)
            except (ZeroDivisionError, OverflowError, ValueError, TypeError, mp.NoConvergence) as error:
                raise error if isinstance(error, NoValue) else NoValue(str(error)) from None

    def _value(self, node: Node) -> tuple[Any, Any]:
        if (rational := exact(node, self.point)) is not None:
            return self._rounded(mp.mpf(rational.numerator) / rational.denominator)
        if node.op == "const":
            if node.text not in _CONSTANTS:
                raise NoValue("infinity")
            return self._rounded(_CONSTANTS[node.text]())
        parts = [self._value(part) for part in node.args]
        made = self._apply(node, parts)
        if not mp.isfinite(made[0]):
            raise NoValue("not finite")
        return self._plain(*made)

    def _rounded(self, value: Any) -> tuple[Any, Any]:
        return value, abs(value) * self.step

    def _plain(self, value: Any, error: Any) -> tuple[Any, Any]:
        """The value as a real number where it is one; else it is noted that it is none."""
        if isinstance(value, mp.mpc):
            if abs(value.imag) <= error:
                return value.real, error
            self.real = False
        return value, error

    def _apply(self, node: Node, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        x, dx = parts[0]
        y, dy = parts[1] if len(parts) > 1 else (mp.mpf(0), mp.mpf(0))
        step = self.step
        if node.op == "neg":
            return -x, dx
        if node.op == "pct":
            return x / 100, dx / 50
        if node.op == "deg":
            return x * mp.pi / 180, dx / 50 + abs(x) * step
        if node.op == "add":
            for one, error, other in ((x, dx, y), (y, dy, x)):
                if 2 * error < abs(one) < abs(other) * step:
                    raise Lost("a small summand")
            return x + y, dx + dy + (abs(x) + abs(y)) * step
        if node.op == "mul":
            return x * y, abs(x) * dy + abs(y) * dx + dx * dy + abs(x * y) * step
        if node.op == "div":
            if abs(y) <= 2 * dy or not y:
                raise NoValue("division by zero")
            quotient = x / y
            return quotient, 2 * (dx + abs(quotient) * dy) / abs(y) + abs(quotient) * step
        if node.op == "pow":
            return self._raise(x, dx, y, dy, exact(node.args[1]))
        if node.text in ("max", "min") and node.op == "call":
            return (max if node.text == "max" else min)(parts, key=lambda part: part[0])
        return self._call(node, x, dx, y, dy)

    def _raise(self, x: Any, dx: Any, y: Any, dy: Any, exponent: Fraction | None) -> tuple[Any, Any]:
        if abs(y) > LARGEST:
            raise NoValue("too large an exponent")
        if abs(x) <= 2 * dx:
            if not isinstance(y, mp.mpf) or y <= 0:
                raise NoValue("a power of zero")
            return mp.mpf(0), (3 * dx) ** y
        value = x**y
        if exponent is not None and exponent.denominator % 2 and isinstance(x, mp.mpf) and x < 0:
            value = (-x) ** y * (-1) ** exponent.numerator  # the real root, as school has it: (-8)^{1/3} = -2
        relative = abs(y) * dx / abs(x) + abs(mp.log(x)) * dy + self.step * (1 + abs(y * mp.log(x)))
        return value, 2 * abs(value) * relative

    def _call(self, node: Node, x: Any, dx: Any, y: Any, dy: Any) -> tuple[Any, Any]:
        name = node.text
        if name == "root":
            if not y:
                raise NoValue("a zeroth root")
            degree = exact(node.args[1])
            inverse = 1 / degree if degree else None
            return self._raise(x, dx, 1 / y, dy / abs(y) ** 2 + self.step / abs(y), inverse)
        if name in ("floor", "ceil"):
            near = mp.nint(x)
            if abs(x - near) <= 2 * dx:  # as good as whole
                return near, mp.mpf(0)
            return (mp.floor(x) if name == "floor" else mp.ceil(x)), mp.mpf(0)
        if name in ("log", "ln") and abs(x) <= 2 * dx:
            raise NoValue("the logarithm of zero")
        if name == "log" and len(node.args) == 2:
            top, bottom = mp.log(x), mp.log(y)
            if abs(bottom) <= 2 * dy / abs(y):
                raise NoValue("a logarithm to the base one")
            quotient = top / bottom
            return quotient, 2 * (dx / abs(x) + abs(quotient) * dy / abs(y)) / abs(bottom) + abs(quotient) * self.step
        if name == "binom":
            return mp.binomial(x, y), abs(mp.binomial(x, y)) * mp.sqrt(self.step)
        if name not in _FUNCTIONS or (abs(x) > LARGEST and name != "abs" and name != "ln"):
            raise NoValue(name)
        function = _FUNCTIONS[name]
        value = function(x)
        wobble = max(abs(function(x + dx) - value), abs(function(x - dx) - value)) if dx else mp.mpf(0)
        return value, 2 * wobble + abs(value) * self.step
