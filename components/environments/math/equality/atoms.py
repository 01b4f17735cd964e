"""The smallest parts of an expression: numbers, names, functions, brackets, matrices."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from components.environments.math.equality.pieces import closing, continued, key, number, repeating, split
from components.environments.math.equality.text import GREEK, Token, spelling
from components.environments.math.equality.tree import EULER, ONE, TWO, Node, Unreadable, call, shown
from components.environments.math.equality.words import CONSTANTS, FUNCTIONS, STOP, TRIG, letters, listed

_APPLIED = frozenset("fghFGH")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_DECORATIONS = listed(
    "overline bar vec hat widehat tilde overrightarrow overleftrightarrow dot angle triangle measuredangle"
)
_FOREIGN = listed("sum int iint oint prod lim")
_MATRICES = re.compile(r"([pbBvV]?|small)matrix|array")


class Atoms:
    """A place in a list of tokens, and what reads one atom there.

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
            token.text in CONSTANTS or token.text in FUNCTIONS or token.text in GREEK or token.text in _DECORATIONS
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

    def _atom(self, exponent: bool = False) -> Node:
        token = self._peek()
        if token.kind == "num":
            return self._number(exponent)
        if token.kind == "word":
            return self._word()
        if token.is_op("(", "[", "{") or token.is_cmd("{"):
            return self._bracketed()
        if token.is_op("|"):
            self.at, self.bars = self.at + 1, self.bars + 1
            node = self._sum()
            if not self._accept("|"):
                raise Unreadable("a bar is open")
            self.bars -= 1
            return call("abs", node)
        if token.kind == "cmd":
            return self._command()
        raise Unreadable(f"{token.text or 'the end'!r} is no expression")

    def _bracketed(self) -> Node:
        opener = self._peek()
        content = self._group()
        brackets = opener.text + self.tokens[self.at - 1].text
        if opener.kind == "cmd":
            if builder := _condition(content):
                inner = self.inside(builder)
                if inner.op != "rel" and inner.text not in ("and", "or"):
                    raise Unreadable("a set without its condition")
                return inner
            inner = self.inside(content) if content else Node("set")
            return Node("set", inner.args if inner.op == "list" else (inner,) if content else ())
        inner = self.inside(content)
        if inner.op == "list" and inner.text == ",":
            return Node("set", inner.args) if brackets == "{}" else Node("group", inner.args, brackets)
        if brackets not in ("()", "[]", "{}"):
            raise Unreadable("an interval has two ends")
        return inner

    def _number(self, exponent: bool) -> Node:
        source = self._take().text
        following = self._peek()
        if following.is_cmd("overline", "bar", "dot") and "." in source:
            self.at += 1
            return repeating(source, spelling(self._group()) if self._peek().is_op("{") else self._take().text)
        if source.endswith(".") and following.is_op("(") and self._peek(1).kind == "num" and not following.space:
            return repeating(source, spelling(self._group()))
        if following.is_cmd("ldots"):
            self.at += 1
            return continued(source)
        node = number(source)
        if exponent or not source.isdigit():
            return node
        start = self.at
        if (following.is_cmd("frac") or (following.kind == "num" and following.space)) and (part := self._proper()):
            return Node("add", (node, part))  # a mixed number, as in 1 3/4
        self.at = start
        return node

    def _proper(self) -> Node | None:
        """A fraction of two whole numbers that is less than one; None where there is none."""
        if self._peek().is_cmd("frac"):
            self.at += 1
            above, below = self._argument(), self._argument()
        else:
            above = number(self._take().text)
            if not (self._accept("/") and self._peek().kind == "num"):
                return None
            below = number(self._take().text)
        whole = above.op == below.op == "num" and above.source.isdigit() and below.source.isdigit()
        return Node("div", (above, below)) if whole and above.number < below.number else None

    def _word(self) -> Node:
        token = self._take()
        word = token.text
        if word in FUNCTIONS and (not token.quoted or len(word) > 1):
            return self._function(FUNCTIONS[word], latex=False)
        if word.casefold() in STOP and word not in ("i", "pi", "I"):
            raise Unreadable(f"the word {word!r}")
        if token.quoted and len(word) > 1:
            return self._named(word)
        if word in CONSTANTS:
            return CONSTANTS[word]
        if word in GREEK:
            return self._named(word)
        if not letters(word):
            raise Unreadable(f"the word {word!r}")
        if len(word) == 2 and word[0] == "d" and word[1] in "xytuvrsz":
            return self._named(word)  # as in dy/dx
        if len(word) > 1:
            self.tokens = [*self.tokens]
            self.tokens[self.at : self.at] = [Token("word", letter) for letter in word[1:]]
            word = word[0]
            if word in CONSTANTS:
                return CONSTANTS[word]
        if word == "E" and self._peek().is_op("**"):
            return EULER  # as sympy prints it
        return self._named(word)

    def _named(self, name: str) -> Node:
        """A variable, with its index, primes, and what a function is applied to."""
        following = self._peek()
        if following.is_op("_"):
            self.at += 1
            index = self._group() if self._peek().is_op("{") else [self._take()]
            name += "_" + spelling(index).replace(" ", "")
        elif following.kind == "num" and not following.space and following.text.isdigit() and len(name) == 1:
            name += "_" + self._take().text
        while self._accept("'"):
            name += "'"
        if self._peek().is_op("(") and not self._peek().space:
            start = self.at
            inner = self.inside(self._group())
            if name in ("C", "P") and inner.op == "list" and len(inner.args) == 2:
                return call("binom" if name == "C" else "perm", *inner.args)
            if name.rstrip("'") in _APPLIED:
                return Node("name", text=f"{name}({shown(inner)})")
            self.at = start
        return Node("name", text=name)

    def _command(self) -> Node:
        token = self._take()
        name = token.text
        if name in _FOREIGN:
            raise Unreadable("foreign")
        if name == "frac":
            return Node("div", (self._argument(), self._argument()))
        if name == "binom":
            return call("binom", self._argument(), self._argument())
        if name == "sqrt":
            return self._root()
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name], latex=True)
        if name in GREEK or name.startswith("mathbb{"):
            return self._named(name)
        if name in ("emptyset", "ell", "hbar", "imath", "jmath", "partial", "nabla"):
            return Node("set") if name == "emptyset" else self._named(name)
        if name in _DECORATIONS:
            content = self._group() if self._peek().is_op("{") else [self._take()]
            return self._named(f"{name}:{spelling(content).replace(' ', '')}")
        pair = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil"), "|": ("|", "norm")}
        if name in pair:
            stop, function = pair[name]
            ends = [i for i in range(self.at, len(self.tokens)) if self.tokens[i].is_cmd(stop)]
            if not ends:
                raise Unreadable(f"\\{name} is open")
            content, self.at = self.tokens[self.at : ends[0]], ends[0] + 1
            inner = self.inside(content)
            return call(function, inner)
        if name == "begin":
            return self._matrix()
        raise Unreadable(f"the command \\{name}")

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
        return call("root", self._number(True) if plain else self._argument(), degree)

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


def _condition(content: list[Token]) -> list[Token]:
    """The condition in { x | x > 2 } and { x in R : x > 2 }; nothing where there is none."""
    begin = 3 if len(content) > 3 and key(content[1]) == "\\in" and content[2].text.startswith("mathbb{") else 1
    if len(content) > begin + 2 and content[0].kind == "word" and key(content[begin]) in ("|", "\\mid", ":"):
        return content[begin + 1 :]
    return []


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
