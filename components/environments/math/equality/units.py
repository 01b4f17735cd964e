"""Units: what a quantity is measured in, and how one unit converts into another."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from components.environments.math.equality.tokens import Token
from components.environments.math.equality.tree import ZERO, Node, Unreadable
from components.environments.math.equality.words import STOP, letters, listed, mathematical

# base: name[, name]* = factor; ... The first name of a line is the base itself. Counted things are not listed: any
# other word is a base of its own. Months and years are no number of days, and moneys and temperatures do not convert.
_TABLE = """
m: m,meter,metre; km,kilometer,kilometre,kms=1000; cm,centimeter,centimetre,cms=1/100; mm,millimeter,millimetre=1/1000;
   dm,decimeter,decimetre=1/10; nm,nanometer,nanometre=1/1000000000; µm,μm,micrometer,micrometre,micron=1/1000000;
   in,inch,inche=127/5000; ft,foot,feet=381/1250; yd,yard=1143/1250; mi,mile=201168/125
g: g,gram,gramme; kg,kilogram,kilo=1000; mg,milligram=1/1000; tonne,ton=1000000; lb,lbs,pound=45359237/100000;
   oz,ounce=45359237/1600000
s: s,sec,second; ms,millisecond=1/1000; min,mins,minute=60; h,hr,hrs,hour=3600; day,days=86400; week,wk=604800
month: month; year,yr=12; decade=120; century,centurie=1200
L: L,l,liter,litre; mL,ml,milliliter,millilitre=1/1000; cL,cl,centiliter=1/100; dL,dl,deciliter=1/10; kL=1000
gallon: gallon,gal; quart,qt=1/4; pint,pt=1/8; cup=1/16
dollar: dollar,usd,buck; cent,penny,pennie,¢=1/100
euro: euro,eur
poundsterling: poundsterling,gbp; pence=1/100
yen: yen,jpy
rupee: rupee,rs,inr
yuan: yuan,cny,rmb
degree: degree,deg
percent: percent,pct
am: am
pm: pm
degC: degc,celsius,centigrade
degF: degf,fahrenheit
K: K,kelvin
N: N,newton; kN=1000
J: J,joule; kJ=1000; eV=801088317/5000000000000000000000000000; cal,calorie=523/125; kcal=4184; Wh=3600; kWh=3600000
W: W,watt; kW,kw,kilowatt=1000; mW=1/1000; MW,megawatt=1000000; GW=1000000000
V: V,volt; kV=1000; mV=1/1000
A: A,ampere,amp; mA=1/1000
Hz: Hz,hz,hertz; kHz,khz=1000; MHz=1000000; GHz=1000000000
Pa: Pa,pascal; kPa=1000; MPa=1000000; bar=100000; atm=101325
psi: psi
mol: mol,mole; mmol=1/1000
byte: byte,B; kB,KB,kilobyte=1000; MB,megabyte=1000000; GB,gigabyte=1000000000; TB=1000000000000
bit: bit
dB: dB,decibel
ppm: ppm
Omega: Omega,ohm
C: C,coulomb
F: F,farad
T: T,tesla
H: H,henry
acre: acre
ha: ha,hectare
"""
_SPEEDS = {"mph": "mi h", "kph": "km h", "kmph": "km h", "kmh": "km h", "fps": "ft s", "mps": "m s", "rpm": "rev min",
           "mpg": "mi gallon"}  # fmt: skip
MONEY = {"$": "dollar", "€": "euro", "£": "poundsterling", "¥": "yen", "₹": "rupee", "¢": "cent"}
CODES = frozenset(["USD", "EUR", "GBP", "JPY", "INR", "Rs", "US"])
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_EMPTY = listed(
    "unit units total altogether left remaining of the each apiece radian radians rad whole full piece pieces only "
    "respectively exactly long tall wide high deep old away more"
)
_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "feet": "foot",
              "geese": "goose", "teeth": "tooth", "dice": "die"}  # fmt: skip
_IRREGULAR |= {word: word for word in listed("sheep fish deer aircraft offspring candy fruit paper money homework")}


def _table() -> dict[str, tuple[Fraction, str]]:
    found: dict[str, tuple[Fraction, str]] = {}
    for line in re.sub(r"\n +", " ", _TABLE.strip()).splitlines():
        base, _, entries = line.partition(": ")
        for entry in entries.split("; "):
            names, _, factor = entry.rstrip(";").partition("=")
            found |= {name: (Fraction(factor or 1), base) for name in names.split(",")}
    return found


_UNITS = _table()
_MILLI = listed("mm mg ml ms mw mv ma mj mhz mpa mb")  # and not mega-, which is spelled M
_LETTERS = listed("m g s h L l N J W V A K")  # units of one letter, also outside of upright text
_UPRIGHT = _LETTERS | listed("F C T H B")


def singular(word: str) -> str:
    """A counted thing in the singular, in small letters unless it may be the sign of a unit."""
    word = word.casefold() if len(word) > 3 else word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    for ending, replacement in (("ies", "y"), ("xes", "x"), ("shes", "sh"), ("ches", "ch"), ("sses", "ss")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return word[: -len(ending)] + replacement
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3 else word


def known(word: str) -> tuple[Fraction, str] | None:
    """A listed unit: its factor and its base."""
    if word in _UNITS or len(word) == 1 or word.casefold() in _MILLI:
        return _UNITS.get(word)
    return _UNITS.get(word.casefold()) or _UNITS.get(singular(word))


def may_begin(token: Token, lone: bool) -> bool:
    """Whether a unit may begin with this token.

    Args:
        token: It follows a number.
        lone: Whether a bare single letter after a blank counts, as in ``18 m``, which may also be 18 times m.
    """
    word = token.text
    if token.is_op(*MONEY) or (lone and token.is_cmd("Omega")):
        return True
    if token.kind != "word" or word.casefold() in STOP:
        return False
    if len(word) == 1:
        return (word in _UPRIGHT and token.quoted) or (word in _LETTERS and lone and token.space)
    if word.casefold() in ("square", "sq", "cubic", "cu"):
        return True
    if word in CODES or token.quoted or known(word) is not None or word in _SPEEDS or word.casefold() in _EMPTY:
        return word != "in" or token.quoted
    return not mathematical(word) and not letters(word)


def scale(tokens: list[Token]) -> tuple[int, list[Token]]:
    """The number that leading words such as ``million`` and ``dozen`` multiply by, and what follows them."""
    factor = 1
    while tokens and tokens[0].kind == "word" and (name := tokens[0].text.casefold()) in _SCALES:
        factor, tokens = factor * _SCALES[name], tokens[1:]
    return factor, tokens


def unit(tokens: list[Token], one: bool = False) -> tuple[Fraction, str]:
    """A unit's factor and what it measures, as ``known bases|other words``: ``m:1 s:-1|``, ``|apple``, ``|`` for none.

    Args:
        tokens: What stands behind a number.
        one: Whether the number is one. Of any other number the things that it counts stand in the plural, which tells
            them from words of another kind.

    Raises:
        Unreadable: if the tokens hold anything but a unit.
    """
    factor, bases, words = Fraction(1), Counter[str](), set[str]()
    sign, power, index, count = 1, 1, 0, 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        word = token.text.casefold()
        if token.is_op("/") or (token.kind == "word" and word in ("per", "a", "an")):
            sign = -1
        elif token.is_op("*", ".", "-", "(", ")", "{", "}"):
            continue
        elif token.is_cmd("frac"):
            above, below = _halves(tokens[index:])
            return unit([*tokens[: index - 1], *above, Token("op", "/"), *below], one)
        elif token.text == "US":
            continue
        elif token.kind == "word" and word in ("square", "sq", "cubic", "cu"):
            power = 3 if word[0] == "c" else 2
        elif token.kind == "word" and word in _EMPTY and word not in ("rad",):
            index += _raised(tokens[index:])[1]
            power = 1
        elif token.kind == "word" and word == "in" and index < len(tokens) and tokens[index].text in ("total", "all"):
            index += 1
        elif (token.kind == "word" and word not in STOP) or token.is_op(*MONEY) or token.is_cmd("Omega"):
            exponent, used = _raised(tokens[index:])
            index += used
            count += 1
            scale_ = tokens[index].text.casefold() if word in ("degree", "degrees") and tokens[index:] else ""
            if scale_ in ("c", "f", "celsius", "fahrenheit"):
                tokens = [*tokens[:index], Token("word", f"deg{scale_[0]}"), *tokens[index + 1 :]]
                continue
            for name, direction in _parts(token):
                exponent_ = sign * direction * power * exponent
                if (entry := known(name)) is None:
                    if len(name) == 1:
                        raise Unreadable(f"{name!r} is a variable")
                    words.add(singular(name) if exponent_ == 1 else f"{singular(name)}{exponent_}")
                    continue
                if not -9 <= exponent_ <= 9:
                    raise Unreadable("a unit's power")
                factor *= entry[0] ** exponent_
                bases[entry[1]] += exponent_
            power = 1
        else:
            raise Unreadable(f"{token.text!r} is no unit")
    if count > 5:
        raise Unreadable("a sentence is no unit")
    if words and not (one or bases or any(_plural(token.text.casefold()) for token in tokens)):
        raise Unreadable("nothing that is counted")
    shown = " ".join(f"{base}:{bases[base]}" for base in sorted(bases) if bases[base])
    return factor, f"{shown}|{' '.join(sorted(words))}"


def _plural(word: str) -> bool:
    return word in _IRREGULAR or word in _EMPTY or (len(word) > 2 and word.endswith("s") and not word.endswith("ss"))


def _parts(token: Token) -> list[tuple[str, int]]:
    if token.text in _SPEEDS:
        above, below = _SPEEDS[token.text].split()
        return [(above, 1), (below, -1)]
    return [(MONEY.get(token.text, token.text), 1)]


def _raised(tokens: list[Token]) -> tuple[int, int]:
    """The power that follows a unit, and the number of its tokens."""
    texts = [token.text for token in tokens[:5]]
    if texts[:1] == ["^"] or texts[:1] == ["**"]:
        end = texts.index("}") if texts[1:2] == ["{"] and "}" in texts else 2 if texts[1:2] == ["-"] else 1
        digits = "".join(texts[1 : end + 1]).strip("{}")
        if not re.fullmatch(r"-?[1-9]", digits):
            raise Unreadable("a unit's power")
        return int(digits), end + 1
    if texts[:1] in (["2"], ["3"]) and not tokens[0].space:
        return int(texts[0]), 1  # cm2
    if texts[:1] in (["squared"], ["cubed"]):
        return (2 if texts[0] == "squared" else 3), 1
    return 1, 0


def _halves(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """What stands above and below a fraction of units."""
    texts = [token.text for token in tokens]
    if texts[:1] != ["{"] or texts[-1:] != ["}"] or texts.count("{") != 2:
        raise Unreadable("a fraction of units")
    middle = texts.index("}")
    return tokens[1:middle], tokens[middle + 2 : -1]


def quantity(value: Node, tokens: list[Token]) -> Node:
    """A value in the unit that the tokens name; degrees and per cent are scalars.

    Raises:
        Unreadable: if they name no unit.
    """
    times, tokens = scale(tokens)
    if times != 1:
        value = Node("mul", (value, Node("num", number=Fraction(times), source=str(times))))
    factor, measures = unit(tokens, one=value.number == 1 and value.op == "num")
    if measures in ("degree:1|", "percent:1|"):
        return Node("deg" if measures[0] == "d" else "pct", (value,))
    if measures in ("am:1|", "pm:1|") and value.op != "ratio":
        value = Node("ratio", (value, ZERO), "time")  # 3 pm
    return value if measures == "|" else Node("quantity", (value,), measures, factor)


def ratio(one: Node, other: Node) -> Fraction | None:
    """How many of the other's unit make one of the first; None where they measure different things."""
    (bases, _, words), (other_bases, _, other_words) = one.text.partition("|"), other.text.partition("|")
    mine, theirs = set(words.split()), set(other_words.split())
    if bases != other_bases or not (mine <= theirs or theirs <= mine):
        return None
    if not bases and not (mine & theirs):
        return None
    return one.number / other.number
