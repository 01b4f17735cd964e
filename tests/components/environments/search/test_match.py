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
from components.environments.search import Search, SearchParams
from components.environments.search.match import MATCH
from components.environments.search.match import f1 as f1_of_forms
from components.environments.search.questions import make_prompt
from components.environments.verify import verify
from components.tree.anchors import SUCCESS
from components.tree.groups import CONSTANT, why_dropped


def judge(**section) -> Search:
    return Search(SearchParams(**section))


def f1(answer: str, gold: str, match: str = "careful") -> float:
    return f1_of_forms(MATCH[match](answer)[0], MATCH[match](gold)[0])


BINARY, GRADED = judge(), judge(graded=True)
E_ACUTE, DECOMPOSED = "Beyonc\u00e9", "Beyonce\u0301"

# Gold and answer, by whether they match with care, and whether they do by SQuAD's evaluation.
PAIRS = {
    (1, 1): [
        ("geneva", "Geneva"), ("Beatles", "The Beatles"), ("apple", "an  apple\n"), ("USA", "U.S.A."),
        ("washington dc", "Washington, D.C."), ("Yes", "'yes'"), ("émile 木", "ÉMILE 木"), ("+", "+"),
        ("the  the", "The The"), ("A", "a"), ("Yahoo", "Yahoo!"), ("ONeill", "O'Neill"), ("MASH", "M*A*S*H"),
        ("1000000", "1,000,000"), ("5", "5."), ("wellknown", "well-known"), ("ACDC", "AC/DC"), ("5", "+5"),
        ("St Louis", "St. Louis"), ("C", "(C)"), ("e-mail", "email"), ("New York", "New\u00a0York"),
        ("$5 million", "$ 5 million"),
    ],
    (1, 0): [
        (E_ACUTE, DECOMPOSED), (DECOMPOSED, E_ACUTE), ("Schindler's List", "Schindler’s List"),
        ("1939–1945", "1939-1945"), ("1939-1945", "1939 — 1945"), ("Hey Jude", "“Hey Jude”"),
        ("Hey Jude", "«Hey Jude»"), ("-5", "−5"), ("-5", "–5"), ("well known", "well-known"),
        ("well-known", "well‑known"), ("AC/DC", "AC DC"), ("#1", "＃１"), ("office", "oﬃce"), ("Louis IV", "Louis Ⅳ"),
        ("Geneva", "Gen\u00adeva\u200b"), ("Straße", "STRASSE"), ("Simon & Garfunkel", "Simon and Garfunkel"),
        ("50%", "50 percent"), ("50 per cent", "50 %"), ("1/2", "½"), ("1 1/2", "1½"), ("红楼梦", "《红楼梦》"),
        ("Que?", "¿Que?"), ("수도", "\u1109\u116e\u1103\u1169"), ("ガ", "ｶﾞ"), ("Washington, D.C.", "Washington,D.C."),
        ("rock 'n' roll", "rock ’n’ roll"),
    ],
    (0, 1): [
        ("5", "-5"), ("-5", "5"), ("C++", "C"), ("C", "C++"), ("C#", "C"), ("15", "1.5"), ("1.5", "15"),
        ("1.95 m", "195 m"), (".5", "5"), ("#1", "1"), ("50%", "50"), ("$5", "5"), ("3-2", "32"), ("9/11", "911"),
        ("5:30", "530"), ("10^6", "106"), ("B+", "B"), ("6'2", "62"), ("Disney+", "Disney"), ("1,5", "15"),
        ("Vitamin A", "Vitamin"), ("<5", "5"),
    ],
    (0, 0): [
        ("-5", "−6"), ("$5", "€5"), ("5 €", "5"), ("A", "A-"), ("AB−", "AB"), ("90°", "90"), ("x²", "x2"),
        ("กิน", "กุน"), ("Geneva", "Genoa"), ("the", ""), ("+", ""), ("", ""), ("+", "-"), ("atre", "theatre"),
        ("yes", "no"), ("new york", "new york city"), ("geneva", "\x00"), ("geneva", "<answer>"),
        ("Beyoncé", "Beyonce"), ("Vitamin A", "Vitamin B"), ("", "\u200b"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "gold", "answer"), [(verdicts, *pair) for verdicts, pairs in PAIRS.items() for pair in pairs]
)
def test_pairs(verdicts, gold, answer):
    prompt = make_prompt("?", gold, ["no such thing"])
    for match, same in zip(MATCH, verdicts, strict=True):
        assert judge(match=match).score(prompt, answer) == same, match
        if same:
            assert f1(answer, gold, match) == 1.0 or "-" in gold + answer or "/" in gold + answer


@pytest.mark.parametrize("match", MATCH)
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
def test_f1_by_hand(answer, gold, expected, match):
    assert f1(answer, gold, match) == pytest.approx(expected)


@pytest.mark.parametrize("match", MATCH)
@settings(deadline=None)
@given(st.text(), st.text())
def test_f1_is_symmetric_bounded_and_1_for_the_same(match, answer, gold):
    assert 0.0 <= f1(answer, gold, match) <= 1.0
    assert f1(answer, gold, match) == f1(gold, answer, match)
    if gold.split():
        assert f1(gold, gold, match) == 1.0
        assert judge(match=match).score(make_prompt("?", gold, []), gold) == 1.0


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
     "\u0130" * 10**5, "木" * 10**5, "\ud800" * 10**5, "a\u0301" * 10**5, " " * 10**6,
     "\u0315\u0300" * 10**4, "1-" * 10**5, "- " * 10**5, "1," * 10**5, "& " * 10**5, "#" * 10**5],
    ids=lambda text: ascii(text[:8]),
)  # fmt: skip
def test_hostile_answers_are_wrong_and_cheap(answer):
    prompt = make_prompt("Where?", "Geneva", [f"alias {n}" for n in range(20)])
    for match in MATCH:
        start = time.process_time()
        assert verify(judge(graded=True, match=match), prompt, answer).reward == 0.0
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
