"""The words that mean something to mathematics, and those that make a sentence of it."""

from __future__ import annotations

from itertools import pairwise

from components.environments.math.equality.text import GREEK
from components.environments.math.equality.tree import EULER, IMAGINARY, INFINITY, PI


def listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONSTANTS = {"pi": PI, "Pi": PI, "e": EULER, "i": IMAGINARY, "iota": IMAGINARY}
CONSTANTS |= dict.fromkeys(("infty", "oo", "inf", "infinity", "Infinity"), INFINITY)
TRIG = listed("sin cos tan cot sec csc sinh cosh tanh coth sech csch")
FUNCTIONS = {name: name for name in listed("exp ln log gcd lcm max min floor ceil abs cbrt sign")} | {
    t: t for t in TRIG
}
FUNCTIONS |= {f"{prefix}{name}": f"arc{name}" for name in TRIG for prefix in ("arc", "a", "ar")}
FUNCTIONS |= {
    "sqrt": "root", "Sqrt": "root", "lg": "lg", "log10": "lg", "log2": "lb", "factorial": "fact", "binomial": "binom",
    "comb": "binom", "Abs": "abs", "ceiling": "ceil", "Rational": "ratio", "Fraction": "ratio", "sgn": "sign",
    "Max": "max", "Min": "min", "GCD": "gcd", "LCM": "lcm",
}  # fmt: skip
# Words that no unit and no name holds: with one of them a text is a sentence, a condition or another operation.
STOP = listed(
    "if when whenever where for is are was were be been not no nor never or and than then mod modulo to from with "
    "without at least most but times plus minus over factorial root choose divided multiplied by base as it this "
    "that these those which who wrong incorrect false true unless otherwise because since even odd half halves third "
    "thirds fourth fourths fifth fifths sixth sixths eighth eighths tenth tenths hundredth hundredths thousandth "
    "thousandths tens hundreds thousands millions dozens point between either neither both maybe perhaps possibly "
    "probably might could may can cannot should would guess unsure so thus hence therefore answer equals equal "
    "approximately about however except instead rather too also wait actually yes all any some every none other sqrt "
    "sin cos tan log ln pi i we you he she they do does did has have had mean means prime composite real integer "
    "integers positive negative works fails fail holds hold wins win loses lose satisfies exists converges diverges "
    "occurs suffices seems something anything everything nothing around nearly almost unlikely likely doubtful "
    "impossible invalid always sometimes besides thanks alas oops nope rejected excluded discarded bad error attempt "
    "unknown unclear ths squared cubed divides exceeds let ans solution solutions value values undefined mixed "
    "decimal binary"
)


def letters(word: str) -> bool:
    """Whether a bare word may be a product of variables: xy, abc, AB, but not cat."""
    ascending = all(one < other for one, other in pairwise(word))
    return len(word) <= 2 or (word.isupper() and len(word) <= 4) or (ascending and len(word) <= 5)


def mathematical(word: str) -> bool:
    return word in CONSTANTS or word in FUNCTIONS or word in GREEK
