"""Numbers as they are spelled, and the brackets that hold a list of tokens together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from components.environments.math.equality.tokens import Token
from components.environments.math.equality.tree import Node, Unreadable

DIGITS = 1500  # of one number, its exponent of ten included


def number(source: str) -> Node:
    mantissa, _, exponent = source.lower().partition("e")
    if len(mantissa) > DIGITS or len(exponent) > 5 or abs(int(exponent or 0)) > DIGITS:
        raise Unreadable(f"a number of more than {DIGITS} digits")
    if not re.search(r"\d", mantissa):
        raise Unreadable("a point without digits")
    return Node("num", number=Fraction(source), source=source)


def repeating(source: str, period: str) -> Node:
    """The value of 0.1666… where the digits `period` repeat for ever."""
    if not re.fullmatch(r"\d{1,50}", period, re.ASCII) or "e" in source.lower():
        raise Unreadable(f"the period {period!r}")
    shift = len(source.partition(".")[2])
    value = Fraction(source) + Fraction(int(period), (10 ** len(period) - 1) * 10**shift)
    return Node("div", (Node("num", number=Fraction(value.numerator)), Node("num", number=Fraction(value.denominator))))


def continued(source: str) -> Node:
    """A decimal that goes on: periodic if its last digits repeat, else cut off."""
    whole, _, digits = source.partition(".")
    for length in range(1, len(digits) // 2 + 1):
        if digits[-length:] == digits[-2 * length : -length]:
            return repeating(f"{whole}.{digits[:-length]}", digits[-length:])
    if not digits:
        raise Unreadable("a whole number goes on")
    return number(source)


def closing(tokens: list[Token], start: int) -> int:
    """Where the bracket that opens at `start` closes; half-open intervals mix their brackets."""
    stack: list[str] = []
    for index in range(start, len(tokens)):
        token = tokens[index]
        braces = "{}" if token.kind == "op" else "\\{\\}"
        if token.kind not in ("op", "cmd"):
            continue
        if token.text == "{":
            stack.append(braces[len(braces) // 2 :])
        elif token.text in ("(", "["):
            stack.append("])")
        elif token.text == "}":
            if not stack or stack.pop() != braces[len(braces) // 2 :]:
                break
        elif token.text in (")", "]") and (not stack or stack.pop() != "])"):
            break
        if not stack:
            return index
    raise Unreadable("brackets do not match")


def key(token: Token) -> str:
    """A token's spelling, a command's with its backslash."""
    return f"\\{token.text}" if token.kind == "cmd" else token.text


def outside(tokens: list[Token]) -> Iterator[int]:
    """The places of the tokens outside all brackets."""
    index = 0
    while index < len(tokens):
        if tokens[index].is_op("(", "[", "{") or tokens[index].is_cmd("{"):
            index = closing(tokens, index)
        else:
            yield index
        index += 1


def split(tokens: list[Token], *signs: str) -> tuple[list[list[Token]], list[str]]:
    """The pieces between signs outside all brackets (see `key`), and those signs."""
    places = [index for index in outside(tokens) if key(tokens[index]) in signs]
    edges = [-1, *places, len(tokens)]
    pieces = [tokens[begin + 1 : end] for begin, end in pairwise(edges)]
    return pieces, [key(tokens[place]) for place in places]
