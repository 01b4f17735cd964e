"""Wrong rewards, side by side: this grader and what others ship, over the pairs of the tests.

A false positive is a wrong answer with a reward; the share of false negatives is that of right answers without one. A
grader that raises or takes more than a second of CPU time gives no reward. The others, each by its published rule, in short:

- `math_verify`: https://github.com/huggingface/Math-Verify, `verify(parse(gold), parse(answer))` as its README has it,
  the gold answer set in dollars and the answer in a box.
- `hendrycks`: `is_equiv` of https://github.com/hendrycks/math (modeling/math_equivalence.py): equal after string rules.
- `gsm8k`: the last number of the text, as scripts for GSM8K take it (lm-evaluation-harness, filter `flexible-extract`).
- `sympy`: normalise, then sympy, as PRM800K's grader does, which DeepScaleR and verl build on
  (https://github.com/openai/prm800k, grading/grader.py): equal texts, or a difference that simplifies to zero; tuples
  by element; fractions and whole numbers only as they stand.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.grader
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable
from pathlib import Path

from math_verify import parse, verify
from sympy import simplify
from sympy.parsing.sympy_parser import (
    implicit_multiplication_application,
    parse_expr,
    standard_transformations,
)

from bench.results import record
from components.environments.math.boxed import last_boxed
from components.environments.math.equality import equal
from components.tree.schema import Status
from components.workers.pool import Workers

PAIRS = Path(__file__).parents[1] / "tests" / "components" / "environments" / "math" / "pairs.csv"
Grader = Callable[[str, str], bool]


def math_verify(gold: str, answer: str) -> bool:
    if "boxed" not in answer and not re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}\s+[a-zA-Z]{2,}", answer):
        answer = f"\\boxed{{{answer}}}"  # as a policy is told to write it; sentences stay as they are
    wanted = parse(f"${gold}$", parsing_timeout=None)
    return bool(verify(wanted, parse(answer, parsing_timeout=None), timeout_seconds=None))


def hendrycks(gold: str, answer: str) -> bool:
    return _stripped(gold) == _stripped(last_boxed(answer) or answer)


def _stripped(text: str) -> str:
    """The string rules: typesetting and units away, fractions and roots with braces, a/b and 0.5 as fractions."""
    for old, new in [("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""),
                     ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")]:  # fmt: skip
        text = text.replace(old, new)
    text = text.split("\\text{ ")[0].replace("\\%", "").replace("%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    sides = text.split("=")
    text = sides[-1] if len(sides) == 2 and len(sides[0].strip()) <= 2 else text
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text).replace(" ", "")
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = "\\frac{1}{2}" if text == "0.5" else text
    return re.sub(r"^(-?\d+)/(\d+)$", r"\\frac{\1}{\2}", text)


def gsm8k(gold: str, answer: str) -> bool:
    numbers = [re.findall(r"-?[$0-9.,]{2,}|-?[0-9]+", text) for text in (gold, answer)]
    found = [re.sub(r"[,$]|\.$", "", texts[-1]) if texts else None for texts in numbers]
    return found[0] is not None and found[0] == found[1]


def sympy(gold: str, answer: str) -> bool:
    mine, theirs = (_normalised(text) for text in (gold, last_boxed(answer) or answer))
    if mine == theirs:
        return True
    if not theirs:
        return False
    parts = [text[1:-1].split(",") if text[:1] in "([" and text[-1:] in ")]" else [text] for text in (mine, theirs)]
    if len(parts[0]) != len(parts[1]) or (len(parts[0]) > 1 and (mine[0], mine[-1]) != (theirs[0], theirs[-1])):
        return False
    return all(_agree(*pair) for pair in zip(*parts, strict=True))


def _normalised(text: str) -> str:
    text = re.sub(r"\\text\{(.*?)\}", r"\1", _stripped(text).replace("\\pi", "pi").replace("\\cdot", "*"))
    text = re.sub(r"\\frac\{(.*?)\}\{(.*?)\}", r"(\1)/(\2)", text).replace("^", "**")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", re.sub(r"\\sqrt\{(.*?)\}", r"sqrt(\1)", text))
    units = (
        r"(degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard)(e?s)?(\*\*\d)?$"
    )
    return re.sub(units, "", text.lower()).replace("{", "(").replace("}", ")")


def _agree(gold: str, answer: str) -> bool:
    if re.fullmatch(r"\(?-?\d+\)?/\(?\d+\)?|-?\d+", gold) and re.fullmatch(r"\(?-?\d+\)?/\(?\d+\)?|-?\d+", answer):
        return gold == answer
    if re.search(r"\*\*[\d(]*\d{4}|\*\*.*\*\*", gold + answer):
        return False  # as the original refuses what may take for ever
    rules = (*standard_transformations, implicit_multiplication_application)
    difference = parse_expr(f"({gold})-({answer})", transformations=rules)
    return bool(simplify(difference) == 0)


def ours(gold: str, answer: str) -> bool:
    return equal(gold, last_boxed(answer) or answer)


GRADERS: dict[str, Grader] = {
    "grader": ours, "math_verify": math_verify, "hendrycks": hendrycks, "gsm8k": gsm8k, "sympy": sympy,
}  # fmt: skip


def judge(task: list[str]) -> tuple[bool, float]:
    """The verdict of the named grader on a gold answer and an answer, and its CPU seconds."""
    name, gold, answer = task
    begin = time.process_time()
    try:
        verdict = GRADERS[name](gold, answer)
    except Exception:  # whatever a grader raises, it gives no reward
        verdict = False
    return verdict, time.process_time() - begin


for _name in GRADERS:
    judge([_name, r"\frac13", r"\int_0^1 x^2 dx"])  # builds tables that every later one uses


def main() -> None:
    with PAIRS.open(encoding="utf-8", newline="") as stream:
        pairs = list(csv.DictReader(stream))
    right = sum(row["right"] == "1" for row in pairs)
    record({"grader_pairs": len(pairs)})
    for name in GRADERS:
        with Workers("bench.grader:judge", timeout=60.0, cpu=1.0) as workers:
            replies = workers.map([[name, row["gold"], row["answer"]] for row in pairs])
        found = [reply.value if reply.status == Status.OK else (False, 1.0) for reply in replies]
        verdicts = [(row["right"], verdict) for row, (verdict, _) in zip(pairs, found, strict=True)]
        seconds = [taken for _, taken in found]
        record(
            {
                f"{name}_false_positives": verdicts.count(("0", True)),
                f"{name}_false_negative_share": verdicts.count(("1", False)) / right,
                f"{name}_per_s": len(pairs) / sum(seconds),
                f"{name}_slowest_s": max(seconds),
            }
        )


if __name__ == "__main__":
    main()
