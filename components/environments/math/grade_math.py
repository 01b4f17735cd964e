"""Whether an answer is worth the gold answer, by the package math-verify.

Its own time limits are off: they rest on signals, fail in threads, and make "not equal" of a time-out. The process that
runs this is killed instead.
"""

from __future__ import annotations

import logging
import re

from math_verify import parse, verify  # type: ignore

logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}\s+[a-zA-Z$\\\d(-]")  # a word and something after it

_POWER = re.compile(r"\*\*\s*(\w+)")  # as Python writes it


def grade(pair: list[str]) -> bool:
    """Whether [gold, answer] agree.

    The gold answer is LaTeX or a number. The answer is read in the same way, and, where that does not agree and it
    holds words, as a sentence that says the answer, of which the last one counts.
    """
    gold, answer = pair
    wanted = _parse(_boxed(gold))
    readings = [_boxed(answer), answer] if _PROSE.search(answer) else [_boxed(answer)]
    return any(verify(wanted, _parse(reading), timeout_seconds=None) for reading in readings)


def _boxed(text: str) -> str:
    text = _POWER.sub(r"^{\1}", text.strip().strip("$"))
    return f"\\boxed{{{text}}}"


def _parse(text: str) -> list[object]:
    return list(parse(text, parsing_timeout=None))


grade(["\\frac{1}{3} + x", "The answer is $x + 1/3$."])  # the first call builds tables that every later one uses
