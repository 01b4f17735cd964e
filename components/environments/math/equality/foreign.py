"""Sums, products, integrals and limits: read and compared by the package math-verify."""

from __future__ import annotations

import logging
import re
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy  # type: ignore
from math_verify import verify  # type: ignore

from components.environments.math.equality.text import clean
from components.environments.math.equality.tokens import Token

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
_SIGNS = frozenset(["sum", "int", "iint", "oint", "prod", "lim"])
# math-verify reads what it can of a text and drops the rest, so only texts of these commands and no words come to it.
_KNOWN = frozenset(
    "sum int iint oint prod lim frac sqrt sin cos tan ln log exp pi infty to le ge cdot times binom n x theta".split()  # noqa: SIM905
)


def concerns(tokens: list[Token]) -> bool:
    return any(token.kind == "cmd" and token.text in _SIGNS for token in tokens)


def equal(gold: str, answer: str) -> bool:
    """Whether two expressions are equal, of which one at least holds a sum, a product, an integral or a limit.

    Their values decide, to 20 digits, at some whole numbers for their variables; where they have none, math-verify,
    which compares small values by their absolute difference.
    """
    one, other = _expression(gold), _expression(answer)
    if one is None or other is None or one.free_symbols != other.free_symbols:
        return False
    names = sorted(one.free_symbols, key=str)
    for number in (3, 5, 8, 13, 6) if names else (0,):
        point = {name: number + index for index, name in enumerate(names)}
        x, y = one.subs(point).evalf(30), other.subs(point).evalf(30)
        if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
            return bool(verify(one, other, timeout_seconds=None))
        if not x and y:
            return bool((other.subs(point).doit() - x) == 0)
        if abs(x - y) > abs(x) * 10**-20:
            return False
    return True


def _expression(text: str) -> Any:
    text = clean(text)
    outside = re.sub(r"_\{[^{}]*\}", " ", text)  # where k = 1 may stand
    words = re.search(r"(?<!\\)\b(?!d[a-z]\b)[a-zA-Z]{2,}", re.sub(r"\\[a-zA-Z]+", " ", text))
    if words or re.search(r"[=<>,;:]", outside) or not set(re.findall(r"\\([a-zA-Z]+)", text)) <= _KNOWN:
        return None
    try:
        return latex2sympy(text, normalization_config=NormalizationConfig(basic_latex=True, malformed_operators=True))
    except Exception:  # of many kinds, all of which say that it cannot be read
        return None
