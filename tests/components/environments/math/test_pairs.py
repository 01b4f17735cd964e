"""Thousands of answers with the reward that each deserves: none that is wrong passes, hardly any right one fails."""

from __future__ import annotations

import csv
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.environments.math.grader import CPU_SECONDS, TIMEOUT_SECONDS, reward

pytest.importorskip("math_verify")

PAGE = Path(__file__).parents[4] / "docs" / "rewards.md"
with Path(__file__).with_name("pairs.csv").open(encoding="utf-8", newline="") as stream:
    PAIRS = list(csv.DictReader(stream))

# Right answers that are refused, and why they may be.
REFUSED = {
    (r"\text{I and II}", "I, II"): "bare II is read as the square of I",
}


def judged(pairs: list[tuple[str, str]]) -> list[float]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda pair: reward(*pair), pairs))


@pytest.fixture(scope="module")
def rewards() -> list[float]:
    return judged([(row["gold"], row["answer"]) for row in PAIRS])


def test_no_wrong_answer_is_rewarded(rewards):
    passed = [row for row, found in zip(PAIRS, rewards, strict=True) if row["right"] == "0" and found]
    assert [(row["gold"], row["answer"], row["why"]) for row in passed] == []


def test_right_answers_are_rewarded_but_for_the_few_that_are_known(rewards):
    failed = {
        (r["gold"], r["answer"]) for r, found in zip(PAIRS, rewards, strict=True) if r["right"] == "1" and not found
    }
    assert failed == set(REFUSED)
    assert len(REFUSED) < 0.01 * sum(row["right"] == "1" for row in PAIRS)


def test_the_pairs_are_many_balanced_and_say_why():
    right = sum(row["right"] == "1" for row in PAIRS)
    assert len(PAIRS) >= 1000
    assert 0.4 < right / len(PAIRS) < 0.6
    assert all(row["kind"] and row["why"] and row["right"] in ("0", "1") for row in PAIRS)
    assert len({(row["gold"], row["answer"]) for row in PAIRS}) == len(PAIRS)


def examples() -> list[tuple[str, str, float]]:
    """The rows of the page's tables: kind, gold, what is right, what is not."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) < 4 or not cells[1].startswith("`"):
            continue
        (gold,), right, wrong = (re.findall(r"`([^`]+)`", cell.replace("\\|", "|")) for cell in cells[1:4])
        found += [(gold, answer, 1.0) for answer in right] + [(gold, answer, 0.0) for answer in wrong]
    return found


def test_the_page_tells_what_the_grader_does():
    rows = examples()
    assert len(rows) > 100
    found = judged([(gold, answer) for gold, answer, _ in rows])
    assert [row for row, one in zip(rows, found, strict=True) if row[2] != one] == []


def test_the_page_names_the_limits_of_time():
    text = PAGE.read_text(encoding="utf-8")
    assert f"after {CPU_SECONDS:g} s" in text
    assert f"{TIMEOUT_SECONDS:g} s by the clock" in text
