"""docs/cases.md names tests that exist, for every case."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cases.md").read_text()
FIRST = [f"C{k:02d}" for k in (1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18)]
SECOND = [f"C{k}" for k in (19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 30)]

THIRD = [f"C{k}" for k in (31, 32, 33, 34, 35, 37, 38, 39)]
FOURTH = [f"C{k}" for k in range(41, 48)]
FIFTH = [f"C{k}" for k in (48, 49, 51, 52, 53, 54)]
SIXTH = [f"C{k}" for k in (55, 56, 58, 59, 60, 61)]
SEVENTH = [f"C{k}" for k in (62, 63, 65, 67, 68)]
EIGHTH = ["C69"]
NINTH = ["C72", "C73"]
TENTH = ["C75", "C76", "C77"]


def test_every_case_has_a_line_with_a_test():
    lines = re.findall(r"^\| (C\d\d) \|.*\| `tests/", PAGE, re.M)
    assert lines == FIRST + SECOND + THIRD + FOURTH + FIFTH + SIXTH + SEVENTH + EIGHTH + NINTH + TENTH


def test_every_test_named_exists():
    named = re.findall(r"`(tests/\S+?)::(\w+)`", PAGE)
    assert len(named) > 30
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []
