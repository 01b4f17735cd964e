"""Mathematical equality: right whatever the form, and a hostile answer is a verdict or a status, soon."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator

import pytest

from components.environments.math import grader
from components.environments.math.grader import TIMEOUT_SECONDS, reward
from components.environments.verify import VerificationError
from components.errors import MissingExtraError
from components.workers.pool import PerProcess, Workers

pytest.importorskip("math_verify")

CPU = 0.4


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[Workers]:
    """The workers, with less time than they have for real."""
    short = Workers("components.environments.math.grade_math:grade", 2, TIMEOUT_SECONDS, CPU)
    with pytest.MonkeyPatch.context() as patch, short:
        patch.setattr(grader, "_workers", PerProcess(lambda: short))
        reward("x + 1", "1 + x")  # starts its processes
        yield short


RIGHT = [
    ("18", "18"), ("18", "18.0"), ("18", "018"), ("-4", "-4"), ("27", "$27$"), ("1000", "1,000"),
    (r"\frac{1}{3}", r"\boxed{\frac{1}{3}}"), (r"\frac{1}{3}", r"\frac{2}{6}"), (r"\frac13", "1/3"),
    ("0.5", r"\frac{1}{2}"),
    ("5", "The answer is 5."), ("5", "x=5"), ("x=5", "5"), (r"\text{Evelyn}", "Evelyn"), (r"\text{(C)}", "C"),
    (r"90^\circ", "90"), ("1,-2", "-2,1"), (r"10,\!080", "10080"), (r"\$32,\!348", "32348"), ("52_8", "52_{8}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"), ("x^2 - 1", "(x-1)(x+1)"), ("52_8", "52"),
    (r"\frac{1}{2}", r"\cos(\frac{\pi}{3})"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("1281*x**4 + 189*x", "1281x^4 + 189x"), ("5", r"first \boxed{3}, no: \boxed{5}"), ("0", "-0"),
]  # fmt: skip
WRONG = [
    ("18", "19"), ("18", "-18"), ("3", "1, 2, 3"), (r"\frac{1}{3}", r"\frac{1}{4}"), (r"\text{Evelyn}", "Navin"),
    ("5", ""), ("5", "   "), ("5", None), ("5", "nothing"), (".0000672", ".0000673"), ("52_8", "52_9"),
    ("1,-2", "1,-2,3"),
    ("(1,2)", "1<x<2"), ("5", r"first \boxed{5}, no: \boxed{3}"), ("x^2", "x^3"), ("5", "\\"), ("5", "}{"),
    ("18", "１９"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right_whatever_the_form(gold, answer):
    assert reward(gold, answer) == 1.0


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong_is_zero(gold, answer):
    assert reward(gold, answer) == 0.0


def test_the_gold_answer_comes_first():
    """The comparison is not symmetric: a relation may be answered by an interval, not the reverse."""
    assert reward("1<x<2", "(1,2)") == 1.0
    assert reward("(1,2)", "1<x<2") == 0.0


HOSTILE = {
    "10^5 digits": "9" * 100_000,
    "10^6 zeros": "0" * 1_000_000,
    "10^6 blanks": r"\boxed" + " " * 1_000_000,
    "10^5 decimals": "0." + "3" * 100_000,
    "10^6 letters": "a" * 1_000_000,
    "power tower": "9^{9^{9^{9}}}",
    "power tower, plain": "9**9**9**9",
    "factorial": "(10^9)!",
    "factorials": "7!!!!!!!!!!",
    "binomial": r"\binom{10^9}{10^8}",
    "product": r"\prod_{i=1}^{10^9} i",
    "sum": r"\sum_{n=1}^{10^{12}} \frac{1}{n^n}",
    "endless sum": r"\sum_{n=1}^{\infty} \frac{\sin(n^2)}{n}",
    "integral": r"\int_0^1 e^{-x^2} \sin(x^x) dx",
    "trigonometry": r"\sin(x)^{2000} + \cos(\tan(x^{99}))^{200}",
    "expansion": "(a+b+c+d+e+f+g+h)^{300}",
    "nested fractions": r"\frac{" * 2000 + "1" + "}{2}" * 2000,
    "nested roots": r"\sqrt{" * 5000 + "1" + "}" * 5000,
    "nested parentheses": "(" * 20_000 + "1" + ")" * 20_000,
    "nested left": r"\left(" * 5000,
    "nested boxes": r"\boxed{" * 20_000 + "5" + "}" * 20_000,
    "open boxes": r"\boxed{" * 50_000,
    "open braces": "{" * 100_000,
    "closed braces": "}" * 100_000,
    "dollars": "$" * 100_000,
    "backslashes": "\\" * 100_000,
    "matrices": r"\begin{pmatrix}" * 500,
    "equations": "=".join("x" * 5000),
    "terms": "1+" * 20_000 + "1",
    "numbers": "1 " * 50_000,
    "fractions": "½" * 2990,
    "lengths": "5 ft " * 590,
    "percents": "5" + "%" * 2900,
    "points": "1." + r"\frac1." * 300,
    "commas": "1," * 20_000,
    "prose": "the answer is 5 " * 20_000,
    "code": "__import__('os').system('touch escaped')",
    "code in LaTeX": r"\text{__import__('os').system('touch escaped')}",
    "null byte": "\x00",
    "surrogate": "\ud800",
    "not a number": r"\frac{0}{0}",
    "infinity": r"\infty - \infty",
    "input": r"\input{/etc/passwd}",
    "macro": r"\def\x{\x\x}\x",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_wrong_or_a_status_soon(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gold = r"\frac{\sqrt{x}}{2}"
    start = time.perf_counter()
    try:
        assert reward(gold, HOSTILE[name]) == 0.0
    except (TimeoutError, VerificationError) as error:
        reason = str(error)
    else:
        reason = "a verdict"
    assert reason
    assert time.perf_counter() - start < TIMEOUT_SECONDS
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("gold", ["5", "0.5", "52_8", "x", r"\text{a}", "", "$", "}{", "\x00"])
def test_no_gold_answer_makes_a_long_number_slow(gold):
    """Numbers are judged in this process, which nothing can stop."""
    start = time.perf_counter()
    for answer in ("0" * 100_000, "1" * 100_000 + ".", "." + "1" * 100_000, "1" * 100_000 + "_{8", "-" * 100_000):
        assert grader._at_once(gold, answer) in (None, False)
    assert time.perf_counter() - start < 1.0


def test_a_comparison_that_hangs_is_a_timeout():
    with pytest.raises(TimeoutError, match="stopped after"):
        reward("5", HOSTILE["endless sum"])
    assert reward("1/2", "0.50") == 1.0


def test_threads_may_verify():
    rewards: list[float] = []
    thread = threading.Thread(target=lambda: rewards.append(reward(r"\frac{1}{3}", r"\boxed{\frac{1}{3} + 0}")))
    thread.start()
    thread.join()
    assert rewards == [1.0]


def test_neighbours_of_a_comparison_that_hangs_are_not_delayed():
    def hang() -> None:
        with pytest.raises(TimeoutError):
            reward("5", HOSTILE["endless sum"])

    bad = threading.Thread(target=hang)
    bad.start()
    slowest = 0.0
    while bad.is_alive():
        start = time.perf_counter()
        assert reward("1/2", "2/4") == 1.0
        slowest = max(slowest, time.perf_counter() - start)
    bad.join()
    assert slowest < CPU + 1.0


def test_without_its_package_the_verifier_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="install them with"):
        reward("x", "1/2")
