"""What an answer is, once read: a tree of numbers, operations and the forms that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction


class Unreadable(ValueError):
    """A text that is not mathematics as a whole."""


@dataclass(frozen=True)
class Node:
    """One piece of an answer.

    Attributes:
        op: Its kind. Scalars: ``num``, ``name``, ``const`` (pi, e, i, inf), ``add``, ``neg``, ``mul``, ``div``,
            ``pow``, ``pm`` (a ± b), ``call`` (of the function `text`), ``pct`` and ``deg``. Forms: ``list`` (with
            the word that joins it), ``set``, ``group`` (with its two brackets), ``union``, ``cut``, ``minus`` (of
            sets), ``rel`` (with its signs), ``mod``, ``matrix`` and ``det`` (of ``row``), ``ratio``, ``quantity``
            (with its unit), ``label`` (a name in words) and ``foreign`` (what only math-verify may read).
        args: The pieces that it holds.
        text: Its name, sign, brackets or unit.
        number: A number's value.
        source: A number's spelling, which shows how many digits are known; two spellings of one value are equal.
    """

    op: str
    args: tuple[Node, ...] = ()
    text: str = ""
    number: Fraction = Fraction(0)
    source: str = field(default="", compare=False)

    def walk(self) -> Iterator[Node]:
        yield self
        for part in self.args:
            yield from part.walk()

    def depth(self) -> int:
        """The number of its floors."""
        floors, floor = 0, [self]
        while floor:
            floors, floor = floors + 1, [part for node in floor for part in node.args]
        return floors

    def has(self, *ops: str) -> bool:
        return any(node.op in ops for node in self.walk())

    def names(self) -> set[str]:
        return {node.text for node in self.walk() if node.op == "name"}


SCALARS = frozenset(["num", "name", "const", "add", "neg", "mul", "div", "pow", "call", "pct", "deg"])
ZERO, ONE, TWO = (Node("num", number=Fraction(n), source=str(n)) for n in range(3))
PI, EULER, IMAGINARY, INFINITY = (Node("const", text=name) for name in ("pi", "e", "i", "inf"))


def call(function: str, *args: Node) -> Node:
    return Node("call", args, function)


def rewrite(node: Node, change: Callable[[Node], Node]) -> Node:
    """The tree with every piece changed, the innermost first."""
    return change(replace(node, args=tuple(rewrite(part, change) for part in node.args)) if node.args else node)


def spread(node: Node) -> Node:
    """The tree without ±: it becomes a list of two, within the list or set that holds it."""
    if not node.has("pm"):
        return node
    if node.op in ("list", "set"):
        parts: list[Node] = []
        for part in map(spread, node.args):
            parts.extend(part.args if part.op == "list" else [part])
        return replace(node, args=tuple(parts))
    return Node(
        "list", (rewrite(node, lambda part: _sign(part, "+-")), rewrite(node, lambda part: _sign(part, "-+"))), ","
    )


def _sign(node: Node, upper: str) -> Node:
    if node.op != "pm":
        return node
    first, second = node.args
    added = second if node.text == upper else Node("neg", (second,))
    return added if first == ZERO else Node("add", (first, added))


def shown(node: Node) -> str:
    """A tree as a text; equal trees have equal texts."""
    value = node.number if node.op == "num" else node.text
    return f"{value}" if not node.args else f"{node.op}{node.text}({','.join(map(shown, node.args))})"


def infinite(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    if node.op == "neg":
        return -infinite(node.args[0])
    return int(node == INFINITY)
