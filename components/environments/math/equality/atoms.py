"""The smallest parts of an expression: numbers, names, brackets, commands."""

from __future__ import annotations

from components.environments.math.equality.calls import DECORATIONS, PRINTED, Calls
from components.environments.math.equality.pieces import continued, key, number, repeating
from components.environments.math.equality.text import GREEK
from components.environments.math.equality.tokens import Token, spelling
from components.environments.math.equality.tree import EULER, Node, Unreadable, call, shown
from components.environments.math.equality.words import CONSTANTS, FUNCTIONS, STOP, letters, listed

_APPLIED = frozenset("fghFGH")
_FOREIGN = listed("sum int iint oint prod lim")


class Atoms(Calls):
    """Reads one atom at a place in a list of tokens."""

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
        if opener.text == "{" and (condition := _condition(content)):
            inner = self.inside(condition)
            if inner.op != "rel" and inner.text not in ("and", "or"):
                raise Unreadable("a set without its condition")
            return inner
        if opener.kind == "cmd":
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
        if word in PRINTED and self._peek().is_op("(", "."):
            return self._printed(word)
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
        if name in DECORATIONS:
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


def _condition(content: list[Token]) -> list[Token]:
    """The condition in { x | x > 2 } and { x in R : x > 2 }; nothing where there is none."""
    begin = 3 if len(content) > 3 and key(content[1]) == "\\in" and content[2].text.startswith("mathbb{") else 1
    if len(content) > begin + 2 and content[0].kind == "word" and key(content[begin]) in ("|", "\\mid", ":"):
        return content[begin + 1 :]
    return []
