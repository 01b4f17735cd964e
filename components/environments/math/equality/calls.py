"""Functions, roots, matrices and what Python prints, within a scalar expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import reduce

from components.environments.math.equality.pieces import closing, number, split
from components.environments.math.equality.text import GREEK
from components.environments.math.equality.tokens import Token, spelling
from components.environments.math.equality.tree import EULER, ONE, TWO, Node, Unreadable, call, infinite
from components.environments.math.equality.words import CONSTANTS, FUNCTIONS, TRIG, listed

PRINTED = listed("Interval Eq FiniteSet Union Matrix array")
_ENDS = {"open": "()", "Lopen": "(]", "Ropen": "[)"}
DECORATIONS = listed(
    "overline bar vec hat widehat tilde overrightarrow overleftrightarrow dot angle triangle measuredangle"
)
_MATRICES = re.compile(r"([pbBvV]?|small)matrix|array")


class Calls:
    """A place in a list of tokens, and what reads a function with its arguments there.

    Args:
        tokens: What to read.
        inside: Reads what brackets hold, which may be more than a scalar.
    """

    def __init__(self, tokens: list[Token], inside: Callable[[list[Token]], Node]) -> None:
        self.tokens, self.inside, self.at, self.bars = tokens, inside, 0, 0

    def _sum(self) -> Node:
        raise NotImplementedError

    def _factor(self) -> Node:
        raise NotImplementedError

    def _exponent(self) -> Node:
        raise NotImplementedError

    def _atom(self, exponent: bool = False) -> Node:
        raise NotImplementedError

    def _peek(self, ahead: int = 0) -> Token:
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else Token("end", "")

    def _take(self) -> Token:
        token = self._peek()
        self.at += 1
        return token

    def _accept(self, *signs: str) -> bool:
        found = self._peek().is_op(*signs)
        self.at += found
        return found

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token.kind == "word" or token.is_op("(", "[", "{"):
            return True
        if token.kind == "num":
            return self.tokens[self.at - 1].is_op("!")  # 3!7!
        if token.is_op("|"):
            return not self.bars
        return token.kind == "cmd" and (
            token.text in CONSTANTS or token.text in FUNCTIONS or token.text in GREEK or token.text in DECORATIONS
            or token.text in ("frac", "binom", "lfloor", "lceil", "begin", "|")
        )  # fmt: skip

    def _group(self) -> list[Token]:
        """The tokens within the brackets that open here."""
        end = closing(self.tokens, self.at)
        content = self.tokens[self.at + 1 : end]
        self.at = end + 1
        return content

    def _argument(self) -> Node:
        """What a command of LaTeX takes: a group, or one sign."""
        token = self._peek()
        if token.is_op("{"):
            return self.inside(self._group())
        if token.kind == "num" and "e" not in token.text.lower() and len(token.text) > 1:
            self.tokens = [*self.tokens]
            self.tokens[self.at : self.at + 1] = [Token("num", token.text[0]), Token("num", token.text[1:])]
        return self._atom(exponent=True)

    def _function(self, name: str, latex: bool) -> Node:
        """A function with its power, its base and its arguments, which need no brackets in LaTeX."""
        power = base = None
        if self._peek().is_op("^"):
            power = self._exponent()
        if name == "log" and self._peek().is_op("_"):
            self.at += 1
            base = self._base()
        elif name == "log" and not latex and self._peek().kind == "num" and self._peek(1).is_op("("):
            base = number(self._take().text)
        if self._peek().is_op("("):
            inner = self.inside(self._group())
        elif self._peek().is_op("{"):
            inner = self._factor()
        elif name == "root" or (not latex and self._peek().kind == "word"):
            inner = self._argument()
        else:
            inner = self._factor()
            while self._starts_factor() and not self._is_function(self._peek()):
                inner = Node("mul", (inner, self._factor()))
        arguments = inner.args if inner.op == "list" else (inner,)
        if power == Node("neg", (ONE,)) and name in TRIG:
            return _apply(f"arc{name}", arguments, base)
        made = _apply(name, arguments, base)
        return made if power is None else Node("pow", (made, power))

    def _base(self) -> Node:
        """The base of a logarithm. LaTeX lowers one digit, but \\log_10 100 is meant to have the base ten."""
        token = self._peek()
        if token.kind == "num" and token.text == "10" and (self._peek(1).is_op("(", "{") or self._peek(1).space):
            return number(self._take().text)
        return self._argument()

    def _is_function(self, token: Token) -> bool:
        return token.kind in ("cmd", "word") and token.text in FUNCTIONS

    def _root(self) -> Node:
        degree = self.inside(self._group()) if self._peek().is_op("[") else TWO
        plain = self._peek().kind == "num"  # √12 is the root of twelve, whatever LaTeX makes of it
        return call("root", number(self._take().text) if plain else self._argument(), degree)

    def _matrix(self) -> Node:
        kind = spelling(self._group())
        depth, end = 1, self.at
        while depth:
            if end >= len(self.tokens):
                raise Unreadable("an environment is open")
            depth += self.tokens[end].is_cmd("begin") - self.tokens[end].is_cmd("end")
            end += 1
        if not _MATRICES.fullmatch(kind) or depth:
            raise Unreadable(f"the environment {kind}")
        if kind == "array" and self._peek().is_op("{"):
            self._group()
        content = [token for token in self.tokens[self.at : end - 1] if not token.is_cmd("hline")]
        self.at = end
        self._group()
        rows = [Node("row", tuple(map(self.inside, split(row, "&")[0]))) for row in split(content, "\\\\")[0] if row]
        if len({len(row.args) for row in rows}) != 1:
            raise Unreadable("the rows of a matrix differ in length")
        return Node("det" if kind[0] in "vV" else "matrix", tuple(rows))

    def _printed(self, name: str) -> Node:
        """An object as sympy or numpy prints it, behind its name."""
        ends = _ENDS.get(self._take().text, "") if self._accept(".") else "[]"
        inner = self.inside(self._group())
        parts = inner.args if inner.op == "list" else (inner,)
        if name == "Interval" and ends and len(parts) == 2:
            return Node("group", parts, "".join("()"[at] if infinite(parts[at]) else ends[at] for at in (0, 1)))
        if name == "Eq" and len(parts) == 2:
            return Node("rel", parts, "=")
        if name == "FiniteSet":
            return Node("set", parts)
        if name == "Union" and len(parts) > 1:
            return reduce(lambda one, other: Node("union", (one, other)), parts)
        if name in ("Matrix", "array") and parts[0].op == "group":
            return parts[0]
        raise Unreadable(name)


def _apply(name: str, arguments: tuple[Node, ...], base: Node | None) -> Node:
    count = len(arguments)
    if name == "exp" and count == 1:
        return Node("pow", (EULER, *arguments))
    if name == "root" and count <= 2:
        return call("root", arguments[0], arguments[1] if count == 2 else TWO)
    if name == "cbrt" and count == 1:
        return call("root", arguments[0], Node("num", number=Fraction(3)))
    if name in ("lg", "lb") and count == 1:
        return call("log", arguments[0], Node("num", number=Fraction(10 if name == "lg" else 2)))
    if name == "ratio" and count <= 2:
        return Node("div", (arguments[0], arguments[1] if count == 2 else ONE))
    if name == "log" and count == 1 and base is not None:
        return call("log", arguments[0], base)
    if count != {"binom": 2}.get(name, 1) and name not in ("gcd", "lcm", "max", "min") and (name, count) != ("log", 2):
        raise Unreadable(f"{name} of {count} arguments")
    return call(name, *arguments)
