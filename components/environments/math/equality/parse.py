"""Scalar expressions: LaTeX, plain text and Python, read whole or not at all."""

from __future__ import annotations

from fractions import Fraction

from components.environments.math.equality.atoms import Atoms
from components.environments.math.equality.pieces import number
from components.environments.math.equality.tree import ZERO, Node, Unreadable, call


class Parser(Atoms):
    """Reads tokens as one expression, by the precedence of its operators."""

    def whole(self) -> Node:
        """The expression.

        Raises:
            Unreadable: if any token is left over or not understood.
        """
        node = self._sets()
        if self.at < len(self.tokens):
            raise Unreadable(f"{self.tokens[self.at].text!r} is left over")
        return node

    def _sets(self) -> Node:
        node = self._sum()
        while self._peek().is_cmd("cup", "cap", "setminus"):
            op = {"cup": "union", "cap": "cut", "setminus": "minus"}[self._take().text]
            node = Node(op, (node, self._sum()))
        return node

    def _sum(self) -> Node:
        node = self._signed() if self._peek().is_cmd("pm", "mp") else self._product()
        while True:
            if self._accept("+"):
                node = Node("add", (node, self._product()))
            elif self._accept("-"):
                node = Node("add", (node, Node("neg", (self._product(),))))
            elif self._peek().is_cmd("pm", "mp"):
                sign = "+-" if self._take().text == "pm" else "-+"
                node = Node("pm", (node, self._product()), sign)
            else:
                return node

    def _signed(self) -> Node:
        sign = "+-" if self._take().text == "pm" else "-+"
        return Node("pm", (ZERO, self._product()), sign)

    def _product(self) -> Node:
        if self._accept("-"):
            return Node("neg", (self._product(),))
        if self._accept("+"):
            return self._product()
        node = self._factor()
        while True:
            if self._accept("*"):
                node = Node("mul", (node, self._unary()))
            elif self._accept("/"):
                node = Node("div", (node, self._unary()))
            elif self._starts_factor():
                node = Node("mul", (node, self._factor()))
            else:
                return node

    def _unary(self) -> Node:
        if self._accept("-"):
            return Node("neg", (self._unary(),))
        return self._unary() if self._accept("+") else self._factor()

    def _factor(self) -> Node:
        """An atom with what stands behind it: powers, factorials, per cent, degrees."""
        node = self._atom()
        while True:
            token = self._peek()
            if token.is_op("^") and self._peek(1).is_cmd("circ"):
                self.at += 2
                node = self._angle(node)
            elif token.is_op("^") and [t.text for t in self.tokens[self.at + 1 : self.at + 4]] == ["{", "circ", "}"]:
                self.at += 4
                node = self._angle(node)
            elif token.is_op("^", "**"):
                node = Node("pow", (node, self._exponent()))
            elif token.is_op("!") and not self._peek(1).is_op("="):
                self.at += 1
                node = call("fact2" if self._accept("!") else "fact", node)
            elif token.is_op("%"):
                self.at += 1
                node = Node("pct", (node,))
            else:
                return node

    def _angle(self, node: Node) -> Node:
        """Degrees, with minutes and seconds if they follow."""
        for sign, share in (("'", 60), ("''", 3600)):
            if self._peek().kind == "num" and [self._peek(1 + n).text for n in range(len(sign))] == list(sign):
                part = Node("div", (number(self._take().text), Node("num", number=Fraction(share))))
                self.at += len(sign)
                node = Node("add", (node, part))
        return Node("deg", (node,))

    def _exponent(self) -> Node:
        if self._take().text == "**":  # binds to the right, and takes a sign
            sign = self._accept("-")
            node = self._factor()
        else:
            sign = self._accept("-")
            self._accept("+")
            node = self._atom(exponent=True)
            if self._peek().is_op("^"):
                node = Node("pow", (node, self._exponent()))
        return Node("neg", (node,)) if sign else node
