"""Whole answers: lists, equations, intervals, ratios and quantities, read whole or not at all."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from components.environments.math.equality import units
from components.environments.math.equality.parse import Parser
from components.environments.math.equality.pieces import key, outside, split
from components.environments.math.equality.text import clean
from components.environments.math.equality.tokens import Token, spelling, tokenise
from components.environments.math.equality.tree import Node, Unreadable
from components.environments.math.equality.words import STOP

LENGTH = 3000  # characters; no answer is longer, and reading takes more than linear time
DEPTH = 200  # of a tree; what walks it calls itself
PARTS = 4  # of a quantity: days, hours, minutes, seconds
_RELATIONS = {
    "=": "=", "==": "=", ":=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", r"\le": "<=", r"\ge": ">=",
    r"\ne": "!=", r"\approx": "~", r"\simeq": "~", r"\cong": "~", r"\equiv": "≡", r"\in": "in",
}  # fmt: skip
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBERS = {word: n for n, word in enumerate(_SMALL.split())} | {
    word: 20 + 10 * n for n, word in enumerate(_TENS.split())
}
_NEARLY = frozenset(["about", "approximately", "approx", "roughly", "exactly", "precisely", "around"])
_ARTICLES = frozenset(["the", "a", "an", "my", "our", "its", "final", "correct", "desired", "required"])


def read(text: str, answer: bool = False) -> list[Node]:
    """What a text may mean as mathematics; nothing where it is not mathematics as a whole.

    Args:
        text: A gold answer or what a policy wrote.
        answer: Whether a policy wrote it: then ``18 m`` may also be a length.
    """
    if len(text) > LENGTH or len(text := clean(text, answer)) > LENGTH:
        return []
    tokens = tokenise(text)
    readings: list[Node] = []
    for lone in (False, True) if answer else (False,):
        try:
            node = _Reader(lone).many(tokens)
        except (Unreadable, RecursionError, IndexError):
            continue
        if node.depth() <= DEPTH and node not in readings:
            readings.append(node)
    return readings


class _Reader:
    """Reads tokens as an answer.

    Args:
        lone: Whether a single letter may be a unit.
    """

    def __init__(self, lone: bool) -> None:
        self.lone = lone

    def many(self, tokens: list[Token]) -> Node:
        """A list, or its only item."""
        if tokens and tokens[-1].text.casefold() == "respectively":
            tokens = tokens[:-1]
        pieces, joiners = split(tokens, ",", ";", "and", "or", "\\vee", "\\wedge")
        if not joiners:
            return self.item(tokens)
        if pieces[0] and pieces[0][0].text.casefold() in ("either", "both"):
            pieces[0] = pieces[0][1:]
        joiner = "or" if {"or", "\\vee"} & {*joiners} else "and" if {"and", "\\wedge"} & {*joiners} else ","
        if joiner != ",":
            pieces = [piece for piece in pieces if piece]  # 1, 2, and 3
        if len(pieces) == 2 and joiner == "and" and (mixed := self._mixed(pieces)):
            return mixed
        items = tuple(map(self.item, pieces))
        falling = all(
            one.op == other.op == "quantity" and one.number > other.number and units.ratio(one, other)
            for one, other in pairwise(items)
        )
        return Node("compound", items) if joiner == "and" and falling else Node("list", items, joiner)

    def _mixed(self, pieces: list[list[Token]]) -> Node | None:
        """1 and 3/4 is one number."""
        whole, part = pieces
        texts = [token.text for token in part]
        if len(whole) != 1 or not whole[0].text.isdigit():
            return None
        if part[0].is_cmd("frac"):
            return self.item([*whole, *part])
        if len(texts) == 3 and texts[1] == "/":
            return self.item([whole[0], *(Token(t.kind, t.text, n == 0) for n, t in enumerate(part))])
        return None

    def item(self, tokens: list[Token]) -> Node:
        """An equation, inequality or congruence, or a value."""
        for index, token in enumerate(tokens):
            if key(token) in ("\\pmod", "mod", "modulo"):
                return self._congruence(tokens, index)
        sides, found = split(tokens, *_RELATIONS)
        signs = [_RELATIONS[sign] for sign in found]
        if not signs:
            return self.value(tokens)
        if not sides[0] and signs[0] in ("=", "~"):  # = 5
            sides, signs = sides[1:], signs[1:]
            if not signs:
                return self.value(sides[0])
        if "≡" in signs:
            raise Unreadable("a congruence without its modulus")
        first = self._label(sides[0]) if signs[0] in ("=", "in", "~") else self.value(sides[0])
        return Node("rel", (first, *map(self.value, sides[1:])), " ".join(signs))

    def _congruence(self, tokens: list[Token], index: int) -> Node:
        before, after = tokens[:index], tokens[index + 1 :]
        if before and before[-1].is_op("(") and after and after[-1].is_op(")"):
            before, after = before[:-1], after[:-1]
        sides, _ = split(before, "\\equiv", "=")
        if len(sides) > 2 or not all(sides):
            raise Unreadable("a congruence of more than two sides")
        return Node("mod", (*map(self.expression, sides), self.expression(after)))

    def _label(self, tokens: list[Token]) -> Node:
        """The left side of an equation: an expression, or words that name what is equal."""
        try:
            return self.value(tokens)
        except Unreadable:
            words = {token.text.casefold() for token in tokens if token.kind == "word"}
            variables = any(len(t.text) == 1 and t.text.islower() and t.text != "a" for t in tokens if t.kind == "word")
            if not words or variables or any(t.kind == "num" for t in tokens) or STOP & words:
                raise  # of a condition such as: Alice wins, n = 5
            named = spelling([token for token in tokens if token.text not in _ARTICLES], fold=True)
            return Node("label", text=named.replace("mid", "|"))

    def value(self, tokens: list[Token]) -> Node:
        """A ratio, a quantity or an expression."""
        while tokens and tokens[0].kind == "word" and tokens[0].text.casefold() in _NEARLY:
            tokens = tokens[1:]
        if tokens and tokens[0].kind == "word" and tokens[0].text.casefold() in ("negative", "minus"):
            return Node("neg", (self.value(tokens[1:]),))
        tokens = self._digits(_without_ordinal(tokens))
        if not tokens:
            raise Unreadable("nothing")
        parts, colons = split(tokens, ":", "to")
        if colons:
            return self._ratio(parts)
        if money := self._money(tokens):
            return money
        if measured := self._measured(tokens):
            return measured
        return self.expression(tokens)

    def expression(self, tokens: list[Token]) -> Node:
        return Parser(tokens, self.many).whole()

    def _digits(self, tokens: list[Token]) -> list[Token]:
        """Numbers in words become digits."""
        total, used = 0, 0
        while used < len(tokens) and tokens[used].kind == "word" and (n := _NUMBERS.get(tokens[used].text.casefold())):
            if used and not (total % 10 == 0 and total and n < 10):
                break
            total, used = total + n, used + 1
            if used + 1 < len(tokens) and tokens[used].is_op("-") and tokens[used + 1].text in _NUMBERS:
                tokens = tokens[:used] + tokens[used + 1 :]
        if not used and tokens and tokens[0].kind == "word" and tokens[0].text.casefold() == "zero":
            used = 1
        return [Token("num", str(total)), *tokens[used:]] if used else tokens

    def _ratio(self, parts: list[list[Token]]) -> Node:
        if len(parts) == 2 and not any(token.kind == "num" for token in parts[0]):
            first = self._label(parts[0])
            if first.op in ("label", "name"):  # Area: 5
                return Node("rel", (first, self.value(parts[1])), "=")
        last = next((n for n, token in enumerate(parts[-1]) if units.may_begin(token, False)), len(parts[-1]))
        values = [*map(self.expression, parts[:-1]), self.expression(parts[-1][:last])]
        made = Node("ratio", tuple(values), "time" if _clock(parts[-1][:last]) else "")
        return units.quantity(made, parts[-1][last:]) if last < len(parts[-1]) else made

    def _money(self, tokens: list[Token]) -> Node | None:
        """$18, -$18, $-18, USD 18, $18 per hour."""
        start = 1 if tokens[0].is_op("-") else 0
        at = start
        while at < len(tokens) and tokens[at].kind == "word" and tokens[at].text in units.CODES:
            at += 1
        if at < len(tokens) and tokens[at].is_op(*units.MONEY):
            at += 1
        if at == start or at == len(tokens):
            return None
        sign, rest = tokens[at - 1], tokens[at:]
        end = next((n for n, token in enumerate(rest) if units.may_begin(token, False)), len(rest))
        value = self.expression([*tokens[:start], *rest[:end]])
        times, suffix = units.scale(rest[end:])
        if times != 1:
            value = Node("mul", (value, Node("num", number=Fraction(times))))
        if suffix and [known[1] for word in suffix[:1] if (known := units.known(word.text))] == ["dollar"]:
            suffix = suffix[1:]  # $18 dollars
        return units.quantity(value, [Token("word", units.MONEY.get(sign.text, sign.text), True, True), *suffix])

    def _unit_begins(self, tokens: list[Token], at: int) -> bool:
        token, after = tokens[at], tokens[at + 1 : at + 3]
        if token.text == "in" and token.space:
            return not after or after[0].is_op("^")
        if token.is_cmd("frac") and after[1:] and after[0].is_op("{"):
            token = after[1]  # m/s as a fraction of two words
            return token.quoted and units.may_begin(token, False)
        return units.may_begin(token, self.lone)

    def _measured(self, tokens: list[Token], parts_left: int = PARTS) -> Node | None:
        """A number with its unit, or several that add up, as in 5 feet 3 inches."""
        start = next((n for n in outside(tokens) if n and self._unit_begins(tokens, n)), None)
        if start is None:
            return None
        stop = next((n for n in range(start, len(tokens)) if tokens[n].kind == "num" and tokens[n].space
                     and tokens[n - 1].kind == "word"), len(tokens))  # fmt: skip
        try:
            value = self.expression(tokens[:start])
            first = units.quantity(value, tokens[start:stop])
        except Unreadable:
            return None
        if value.names():
            return None
        if stop == len(tokens):
            return first
        rest = self._measured(tokens[stop:], parts_left - 1) if parts_left > 1 else None
        parts = rest.args if rest is not None and rest.op == "compound" else (rest,)
        if first.op != "quantity" or any(p is None or p.op != "quantity" or not units.ratio(first, p) for p in parts):
            return None
        return Node("compound", (first, *(part for part in parts if part is not None)))


def _without_ordinal(tokens: list[Token]) -> list[Token]:
    """5th and 5^{\\text{th}} are 5."""
    texts = [token.text for token in tokens]
    for ending in (["^", "{", "th", "}"], ["^", "th"], ["th"], ["st"], ["nd"], ["rd"]):
        plain = texts[-len(ending) :] == ending
        if plain and len(tokens) == len(ending) + 1 and tokens[0].text.isdigit() and not tokens[1].space:
            return tokens[:1]
    return tokens


def _clock(tokens: list[Token]) -> bool:
    """Whether the second part of 3:45 may be minutes."""
    return len(tokens) == 1 and len(tokens[0].text) == 2 and tokens[0].text < "60" and tokens[0].text.isdigit()
