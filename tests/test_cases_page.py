"""docs/cases.md names tests that exist, for every case."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cases.md").read_text()
NEVER_GIVEN = {3, 5, 14, 22, 36, 40, 50, 57, 64, 66, 70, 71, 74}


def test_every_case_has_a_line_with_a_test():
    lines = re.findall(r"^\| (C\d\d) \|.*\| `tests/", PAGE, re.M)
    assert lines == [f"C{number:02d}" for number in range(1, 78) if number not in NEVER_GIVEN]


def test_every_test_named_exists():
    named = re.findall(r"`(tests/\S+?)::(\w+)`", PAGE)
    assert len(named) > 30
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []
