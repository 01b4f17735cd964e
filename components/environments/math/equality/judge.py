"""The verdict on an answer: by its letter, its base, its value, its text, or what its sentences state."""

from __future__ import annotations

import re

from components.environments.math.equality import foreign
from components.environments.math.equality.forms import LENGTH, read
from components.environments.math.equality.prose import is_prose, statements
from components.environments.math.equality.same import same
from components.environments.math.equality.text import clean
from components.environments.math.equality.tokens import Token, spelling, tokenise
from components.environments.math.equality.tree import EULER, IMAGINARY, Node, rewrite

_BASED = re.compile(
    r"([0-9A-Z]+)\s*(?:_\s*\{?\s*(?:\\text\s*\{)?\s*(\w+)\s*\}?\s*\}?|\(?\s*(?:\\text\s*\{\s*)?\(?\s*base\s*-?\s*(\w+)\s*\)?\s*\}?\)?)",
    re.ASCII,
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")  # 1,234 is not the list 1, 234
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16"}  # fmt: skip
_BEHIND = frozenset(f"( {letter} )" for letter in "ABCDE")
_NOTHING = frozenset(
    ["no solution", "no solutions", "no real solution", "no real solutions", "empty set", "the empty set",
     "there is no solution", "there are no solutions", "no such solution"]
)  # fmt: skip
_SYNONYMS = {"dne": "does not exist", "undef": "undefined", "all real numbers": "mathbb{R}", "all reals": "mathbb{R}",
             "yes": "true", "no": "false", "infinitely many solutions": "infinitely many"}  # fmt: skip


def equal(gold: str, answer: str) -> bool:
    """Whether an answer, without its box, is worth the gold answer."""
    if _tight(gold) == _tight(answer) and not _GROUPED.fullmatch(gold.strip()):
        return True
    if len(answer) <= LENGTH and (verdict := _whole(gold, answer)) is not None:
        return verdict
    if not is_prose(answer):
        return False
    return any(
        _same_text(gold, statement) if hedged else _whole(gold, statement) is True
        for statement, hedged in statements(answer)
    )


def _tight(text: str) -> str:
    return re.sub(r",\s+", ",", text.strip())


def _whole(gold: str, answer: str) -> bool | None:
    """The verdict on an answer that is nothing but the answer; None where it cannot be read."""
    mine, theirs = tokenise(clean(gold)), tokenise(clean(answer, answer=True))
    if not theirs:
        return False
    if _same_text(gold, answer):
        return True
    if (based := _based(gold)) is not None:
        digits, base = _based(answer) or (clean(answer, True).strip(), based[1])
        if not digits.isalnum():
            return None
        return (digits.lstrip("0"), base) == (based[0].lstrip("0"), based[1])
    if _based(answer) is not None:
        return False
    if letter := _choice(mine):
        return _chosen(letter, theirs, gold)
    readings = read(answer, answer=True)
    wanted = read(gold)
    if any(same(one, other) for one in wanted for other in _variants(readings, wanted)):
        return True
    if foreign.concerns(mine) or foreign.concerns(theirs):
        return foreign.equal(gold, answer) or (False if readings else None)
    chosen = _choice(theirs)
    if chosen and chosen[1]:  # (E) 42
        return _whole(gold, _text(chosen[1]))
    return False if readings else None


def _same_text(gold: str, answer: str) -> bool:
    mine, theirs = tokenise(clean(gold)), tokenise(clean(answer, answer=True))
    counts = any(token.kind == "num" for token in mine)  # then short words may be units: mW is not MW
    fold = any((token.quoted and not counts) or len(token.text) > 3 for token in mine if token.kind == "word")
    return bool(mine) and _meaning(spelling(mine, fold)) == _meaning(spelling(theirs, fold))


def _variants(readings: list[Node], wanted: list[Node]) -> list[Node]:
    """The readings, and those in which j or I is the imaginary unit and E Euler's number, if the gold answer has it."""
    constants = {part.text for node in wanted for part in node.walk() if part.op == "const"}
    meant = dict.fromkeys(("j", "I"), IMAGINARY) if "i" in constants else {}
    meant |= {"E": EULER} if "e" in constants else {}
    if not meant:
        return readings
    return readings + [rewrite(n, lambda p: meant.get(p.text, p) if p.op == "name" else p) for n in readings]


def _meaning(text: str) -> str:
    """A text whose meaning has several usual wordings, in one of them."""
    text = text.strip()
    lower = text.casefold()
    if lower in _NOTHING:
        return "emptyset"
    return _SYNONYMS.get(lower, text)


def _based(text: str) -> tuple[str, str] | None:
    """The digits and the base of a number such as 52_8."""
    if not (found := _BASED.fullmatch(re.sub(r"^[a-zA-Z]\w? ?= ?", "", clean(text)))):
        return None
    base = (found[2] or found[3]).casefold()
    base = _BASES.get(base, base)
    if not base.isdigit() or not 2 <= int(base) <= 36 or any(int(digit, 36) >= int(base) for digit in found[1]):
        return None
    return found[1], base


def _text(tokens: list[Token]) -> str:
    """Tokens as a text that reads as they did."""
    pieces = []
    for token in tokens:
        piece = f"\\{token.text} " if token.kind == "cmd" else token.text
        piece = f"\\text{{{piece}}}" if token.quoted and token.kind == "word" else piece
        pieces.append(f"{' ' * token.space}{piece}")
    return "".join(pieces)


def _choice(tokens: list[Token]) -> tuple[str, list[Token]] | None:
    """The letter of a choice and what stands behind it, as in (C), C. 5, Option C, \\text{E: a text}."""
    behind = len(tokens) > 3 and tokens[-3].space and spelling(tokens[-3:]) in _BEHIND
    if behind and tokens[-4].text not in (",", ";", "and", "or"):
        return tokens[-2].text, tokens[:-3]  # 42 (E)
    named = bool(tokens) and tokens[0].kind == "word" and tokens[0].text.casefold() in ("option", "choice")
    tokens = tokens[named:]
    opened = bool(tokens) and tokens[0].is_op("(", "[")
    tokens = tokens[opened:]
    if not tokens or tokens[0].kind != "word" or len(tokens[0].text) != 1:
        return None
    letter, rest = tokens[0].text, tokens[1:]
    bracket = bool(rest) and rest[0].is_op(")")
    if rest[:1] and rest[0].is_op(")", "]", ":", ".") and (opened or not rest[0].is_op("]")):
        closed, rest = True, rest[1:]
    elif len(rest) > 1 and rest[0].is_op("-") and rest[0].space and _is_text(rest[1:]):
        closed, rest = True, rest[1:]  # C - a text
    else:
        closed = False
    if rest[:1] and closed and rest[0].is_op(":", "."):
        rest = rest[1:]
    if (opened or rest) and not closed:
        return None
    if (letter.islower() and not (opened or named or bracket)) or (rest and rest[0].text in (",", ";", "and", "or")):
        return None
    return letter.upper(), rest


def _is_text(tokens: list[Token]) -> bool:
    return all(token.kind == "word" for token in tokens[:3]) and any(len(token.text) > 2 for token in tokens[:3])


def _chosen(gold: tuple[str, list[Token]], answer: list[Token], text: str) -> bool | None:
    """The verdict where the gold answer is a letter, perhaps with its text."""
    found = _choice(answer)
    if found is None:
        if gold[1]:
            return _whole(_text(gold[1]), _text(answer))
        readings = read(_text(answer), answer=True)
        return any(same(one, other) for one in read(text) for other in readings if other.op == "rel") or (
            False if readings else None
        )
    if found[0] != gold[0] or _names_another(*found):
        return False
    return not (gold[1] and found[1]) or _whole(_text(gold[1]), _text(found[1])) is True


def _names_another(letter: str, rest: list[Token]) -> bool:
    """Whether the text of a choice goes on to another choice, as in C) 5 or D) 7."""
    others = set("ABCDEFGHIJ") - {letter}
    for index, token in enumerate(rest):
        beside = [other.text for other in (*rest[max(0, index - 1) : index], *rest[index + 1 : index + 2])]
        if token.kind == "word" and token.text in others and {"or", "and", "(", ")", ":", "."} & {*beside}:
            return True
    return False
