"""Whether two answers that were read are one: by their form, then by the values that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from components.environments.math.equality import scalars, units
from components.environments.math.equality.evaluate import NoValue, exact
from components.environments.math.equality.regions import is_region, region, same_region
from components.environments.math.equality.relations import relations
from components.environments.math.equality.tree import PI, SCALARS, Node, spread

_COLLECTIONS = ("list", "set", "group")


def same(gold: Node, answer: Node) -> bool:
    """Whether the answer is the gold answer, which says what form is wanted: the comparison is not symmetric."""
    gold, answer = (_signed(spread(node)) for node in (gold, answer))
    if gold == answer:
        return True
    ops = {gold.op, answer.op}
    if ops <= SCALARS:
        return _scalars(gold, answer)
    if "rel" in ops:
        return relations(gold, answer, same)
    if ops & {"quantity", "compound"}:
        return _quantities(gold, answer)
    if "mod" in ops:
        return gold.op == answer.op and _congruences(gold, answer)
    if "ratio" in ops:
        return _ratios(gold, answer)
    if is_region(gold) or is_region(answer) or (gold.op == "list" and region(gold)):
        if same_region(gold, answer):
            return True
        if "union" in ops:
            return gold.op == answer.op and _matched(_pieces(gold), _pieces(answer))
    if ops & {"matrix", "det"}:
        return _matrices(gold, answer)
    if ops & {*_COLLECTIONS}:
        return _collections(gold, answer)
    return False


def _signed(node: Node) -> Node:
    """Degrees and per cent hold the sign of what they measure."""
    if node.op == "neg" and node.args[0].op in ("deg", "pct"):
        inner = node.args[0]
        return replace(inner, args=(Node("neg", inner.args),))
    return node


def _scalars(gold: Node, answer: Node) -> bool:
    """Numbers, of which some stand in degrees or per cent."""
    if "deg" in (gold.op, answer.op):
        return _angles(gold, answer)
    if "pct" in (gold.op, answer.op):
        return _shares(gold, answer)
    return scalars.equal(gold, answer)


def _angles(gold: Node, answer: Node) -> bool:
    """Degrees beside a number: of degrees, or of radians where it holds pi."""
    if "pct" in (gold.op, answer.op):
        return False
    if gold.op == answer.op:
        return scalars.equal(gold.args[0], answer.args[0])
    bare = answer if gold.op == "deg" else gold
    if PI in bare.walk():
        return scalars.equal(gold, answer)
    one, other = (node.args[0] if node.op == "deg" else node for node in (gold, answer))
    return scalars.equal(one, other)


def _shares(gold: Node, answer: Node) -> bool:
    """Per cent beside a number: its value, or the number of per cent unless that is below one."""
    if scalars.equal(gold, answer):
        return True
    if gold.op == answer.op:
        return False
    one, other = (node.args[0] if node.op == "pct" else node for node in (gold, answer))
    small = False
    if answer.op == "pct":  # 0.28 is not 0.28%
        try:
            value = exact(one)
        except NoValue:
            return False
        small = value is not None and abs(value) < 1
    return not small and scalars.equal(one, other)


def _quantities(gold: Node, answer: Node) -> bool:
    """Units must be the same, or convert; where one side has none, the numbers must be equal as they stand."""
    if gold.op in ("list", "set", "group") or answer.op in ("set", "group"):
        return gold.op in ("set", "list") and len(gold.args) == 1 and same(gold.args[0], answer)
    if answer.op == "list":
        return False
    if gold.op == "compound":
        return any(same(total, answer) for total in _totals(gold)[-1:])
    if answer.op == "compound":
        return any(same(gold, total) for total in _totals(answer))
    if gold.op == answer.op:
        share = units.ratio(gold, answer)
        return share is not None and same(_times(gold.args[0], share), answer.args[0])
    if {gold.op, answer.op} & {"deg", "pct"}:
        return False
    one, other = (node.args[0] if node.op == "quantity" else node for node in (gold, answer))
    return same(one, other)


def _totals(compound: Node) -> list[Node]:
    """The sum of quantities, in each of their units; none where they do not convert."""
    found = []
    for part in compound.args:
        shares = [units.ratio(other, part) for other in compound.args]
        if None in shares:
            return []
        terms = [
            _times(other.args[0], share or Fraction(0)) for other, share in zip(compound.args, shares, strict=True)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = Node("add", (total, term))
        found.append(replace(part, args=(total,)))
    return found


def _times(value: Node, factor: Fraction) -> Node:
    return value if factor == 1 else Node("mul", (value, Node("num", number=factor)))


def _congruences(gold: Node, answer: Node) -> bool:
    """One residue class: the same modulus, and residues that differ by a multiple of it."""
    if not same(gold.args[-1], answer.args[-1]):
        return False
    if len(gold.args) == len(answer.args) == 3 and not same(gold.args[0], answer.args[0]):
        return False
    one, other = gold.args[-2], answer.args[-2]
    values = [exact(node) for node in (one, other, gold.args[-1])]
    first, second, modulus = values
    if first is not None and second is not None and modulus:
        return (first - second) % modulus == 0
    return same(one, other)


def _ratios(gold: Node, answer: Node) -> bool:
    """Ratios that scale into one another; a ratio of two is a fraction too, a time of day only itself."""
    if gold.op == answer.op:
        if len(gold.args) != len(answer.args):
            return False
        if "time" in (gold.text, answer.text):
            return all(map(same, gold.args, answer.args))
        first, second = gold.args[0], answer.args[0]
        return all(
            scalars.equal(Node("mul", (one, second)), Node("mul", (other, first)))
            for one, other in zip(gold.args[1:], answer.args[1:], strict=True)
        )
    one, other = (
        Node("div", node.args) if node.op == "ratio" and len(node.args) == 2 else node for node in (gold, answer)
    )
    if "ratio" in (one.op, other.op) or "time" in (gold.text, answer.text):
        return False
    if gold.op in SCALARS and (value := exact(gold)) and value.denominator == 1:
        return False  # 7:1 for 7
    return same(one, other)


def _matrices(gold: Node, answer: Node) -> bool:
    one, other = _rows(gold), _rows(answer)
    if one is None or other is None or ("det" in (gold.op, answer.op) and gold.op != answer.op):
        return False
    if {gold.op, answer.op} & {"group", "list"} and min(len(one), len(one[0])) == 1:  # a vector, however it lies
        one, other = [[x for row in one for x in row]], [[x for row in other for x in row]]
    return [len(row) for row in one] == [len(row) for row in other] and all(
        same(x, y) for mine, theirs in zip(one, other, strict=True) for x, y in zip(mine, theirs, strict=True)
    )


def _rows(node: Node) -> list[Sequence[Node]] | None:
    if node.op in ("matrix", "det"):
        return [row.args for row in node.args]
    if node.op == "group" and all(part.op == "group" for part in node.args):  # [[1, 2], [3, 4]]
        return [part.args for part in node.args]
    return [node.args] if node.op in ("group", "list") else None


def _pieces(node: Node) -> list[Node]:
    return [piece for part in node.args for piece in _pieces(part)] if node.op == "union" else [node]


def _matched(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    """Whether the same things stand on both sides, in any order, as often."""
    rest = list(answer)
    for one in gold:
        found = next((n for n, other in enumerate(rest) if same(one, other)), None)
        if found is None:
            return False
        del rest[found]
    return not rest


def _distinct(parts: Sequence[Node]) -> list[Node]:
    found: list[Node] = []
    for part in parts:
        if not any(same(other, part) for other in found):
            found.append(part)
    return found


def _collections(gold: Node, answer: Node) -> bool:
    """Sets and lists without brackets have no order; points, and values that are named, have one."""
    if gold.op not in _COLLECTIONS or answer.op not in _COLLECTIONS:  # {5} is 5
        one, other = (node.args[0] if node.op == "set" and len(node.args) == 1 else node for node in (gold, answer))
        return {one.op, other.op}.isdisjoint(_COLLECTIONS) and same(one, other)
    mine, theirs = assignments(gold), assignments(answer)
    if mine and theirs:
        return mine.keys() == theirs.keys() and all(same(value, theirs[name]) for name, value in mine.items())
    if mine:
        return (
            answer.op != "set"
            and not any(part.op == "rel" for part in answer.args)
            and _in_order(list(mine.values()), answer.args)
        )
    if theirs:
        return gold.op != "set" and _in_order(gold.args, [theirs[name] for name in sorted(theirs)])
    if gold.op == "group" and any(part.op == "rel" for part in answer.args):
        return False  # x = 1, x = 2 is no point
    if gold.op == "group":
        alike = gold.text == answer.text or (len(gold.args) > 2 and answer.op == "group")
        return (alike or (answer.op == "list" and gold.text == "()")) and _in_order(gold.args, answer.args)
    if answer.op == "group":
        return gold.op == "list" and answer.text in ("()", "[]") and _in_order(gold.args, answer.args)
    if "set" in (gold.op, answer.op):
        return _matched(_distinct(gold.args), _distinct(answer.args))
    return _matched(gold.args, answer.args)


def _in_order(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    return len(gold) == len(answer) and all(map(same, gold, answer))


def assignments(node: Node) -> dict[str, Node]:
    """The values of different names, as in x = 1, y = 2; empty where the node holds anything else."""
    found: dict[str, Node] = {}
    for part in node.args if node.op in ("list", "group") else ():
        if part.op != "rel" or part.text != "=" or part.args[0].op not in ("name", "label"):
            return {}
        found[part.args[0].text] = part.args[1]
    return found if len(found) == len(node.args) > 1 else {}
