"""Exact match and F1: the usual measures, their edges, and what graded rewards mean to the allocation."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.allocation.anchors import Belief
from components.allocation.utilities import contrast, root_utility
from components.environments.base import Prompt
from components.environments.search.match import QuestionAnswering, exact_match, f1
from components.environments.search.questions import make_prompt
from components.environments.verify import verify
from components.tree.anchors import SUCCESS
from components.tree.groups import CONSTANT, why_dropped

BINARY, GRADED = QuestionAnswering(), QuestionAnswering(graded=True)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("Geneva", "geneva"),
        ("The Beatles", "Beatles"),
        ("an  apple\n", "apple"),
        ("U.S.A.", "USA"),
        ("Washington, D.C.", "washington dc"),
        ("'yes'", "Yes"),
        ("1.95 m", "195 m"),  # as the official measure has it
        ("ÉMILE 木", "émile 木"),
        ("+", "+"),
        ("The The", "the  the"),
        ("a", "A"),
    ],
)
def test_matches(answer, gold):
    assert exact_match(answer, gold)
    assert f1(answer, gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("Geneva", "Genoa"), ("", "the"), ("", "+"), ("", ""), ("-", "+"), ("theatre", "atre"), ("no", "yes"),
     ("new york city", "new york"), ("\x00", "geneva"), ("<answer>", "geneva")],
)  # fmt: skip
def test_does_not_match(answer, gold):
    assert not exact_match(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("new york city", "New York", 0.8),  # 2 of 3 and 2 of 2
        ("the city", "city hall of paris", 0.4),
        ("c b b", "b b b", 2 / 3),  # words count as often as they stand
        ("yes it is", "yes", 0.0),  # the rule on yes and no
        ("no", "no one", 0.0),
        ("noanswer", "none", 0.0),
        ("paris", "geneva", 0.0),
        ("", "geneva", 0.0),
    ],
)
def test_f1_by_hand(answer, gold, expected):
    assert f1(answer, gold) == pytest.approx(expected)


@settings(deadline=None)
@given(st.text(), st.text())
def test_f1_is_symmetric_bounded_and_1_for_the_same(answer, gold):
    assert 0.0 <= f1(answer, gold) <= 1.0
    assert f1(answer, gold) == f1(gold, answer)
    if gold.split():
        assert f1(gold, gold) == 1.0
        assert exact_match(gold, gold)


def test_rewards_over_aliases_binary_and_graded():
    prompt = make_prompt("Where?", "New York City", ["NYC", "Big Apple"])
    for answer, binary, graded in [
        ("nyc", 1, 1), ("the big apple", 1, 1), ("New York", 0, 0.8), ("big green apple", 0, 0.8),
        ("in this wonderful town that they call city", 0, 0), ("Geneva", 0, 0), ("", 0, 0), (None, 0, 0),
    ]:  # fmt: skip
        assert verify(BINARY, prompt, answer).reward == binary, answer
        assert verify(GRADED, prompt, answer).reward == pytest.approx(graded), answer


def test_partial_credit_starts_at_three_tenths():
    gold = " ".join(f"w{n}" for n in range(17))
    prompt = make_prompt("?", gold, [])
    assert f1("w0 w1 w2", gold) == pytest.approx(0.3)
    assert GRADED.score(prompt, "w0 w1 w2") == pytest.approx(0.3)
    assert f1("w0 w1 x", gold) == pytest.approx(0.2)
    assert GRADED.score(prompt, "w0 w1 x") == 0.0


def test_bad_aliases_are_an_error_status_never_a_wrong_answer():
    for aliases in ("NYC", [7], None):
        outcome = verify(BINARY, Prompt("p", "?", "gold", {"aliases": aliases}), "x")
        assert (outcome.reward, outcome.status) == (None, "error")
        assert "aliases should be a list of texts" in outcome.detail


@pytest.mark.parametrize(
    "answer",
    ["9" * 10**5, "word " * 10**5, "the " * 10**5, "!" * 10**5, "<answer>" * 10**5, "\\frac{" * 10**5, "\x00" * 10**5,
     "\u0130" * 10**5, "木" * 10**5, "\ud800" * 10**5, "a\u0301" * 10**5, " " * 10**6],
    ids=lambda text: ascii(text[:8]),
)  # fmt: skip
def test_hostile_answers_are_wrong_and_cheap(answer):
    prompt = make_prompt("Where?", "Geneva", [f"alias {n}" for n in range(20)])
    start = time.process_time()
    assert verify(GRADED, prompt, answer).reward == 0.0
    assert time.process_time() - start < 2.0


def test_mean_of_graded_rewards_is_no_chance_of_contrast():
    """At the mean, Eq. 12 sees contrast where there is none; at the chance of success it does not."""
    rewards = np.full(4, 0.4)
    assert why_dropped(rewards) == CONSTANT
    at_mean, at_chance = (Belief.point(np.array([v])) for v in (rewards.mean(), (rewards > SUCCESS).mean()))
    assert root_utility(at_mean, np.array([4]))[0] == pytest.approx(0.8448)
    assert root_utility(at_chance, np.array([4]))[0] == 0.0


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_contrast_at_the_mean_never_underrates_graded_rewards(rewards):
    belief = Belief.point(np.array([np.mean(rewards)]))
    assert np.var(rewards) <= contrast(belief)[0] + 1e-9
    binary = np.round(rewards)
    assert np.var(binary) == pytest.approx(contrast(Belief.point(np.array([binary.mean()])))[0])
