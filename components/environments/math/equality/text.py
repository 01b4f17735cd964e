"""One spelling for one sign: LaTeX, plain text, Python, Markdown and Unicode as one notation."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SPELLINGS = {
    "-": "−–—‐‑‒―﹣－", "*": "∗＊", "/": "⁄∕", r"\times ": "×✕✖", r"\cdot ": "·⋅∙•", r"\div ": "÷",
    r"\le ": "≤≦⩽", r"\ge ": "≥≧⩾", r"\ne ": "≠", r"\approx ": "≈", r"\equiv ": "≡", r"\infty ": "∞",
    r"\sqrt ": "√", r"\sqrt[3]": "∛", r"\sqrt[4]": "∜", r"\pm ": "±", r"\mp ": "∓", r"\cup ": "∪", r"\cap ": "∩",
    r"\in ": "∈", r"\notin ": "∉", r"\emptyset ": "∅", r"\setminus ": "∖", r"^\circ ": "°º˚∘", "'": "′’‘ʹ",
    "''": "″", '"': "“”", r"\ldots ": "…", "(": "⟨〈", ")": "⟩〉", r"\lfloor ": "⌊",
    r"\rfloor ": "⌋", r"\lceil ": "⌈", r"\rceil ": "⌉", r"\sum ": "∑", r"\prod ": "∏", r"\int ": "∫", r"\mid ": "∣",
    r"\nmid ": "∤", r"\forall ": "∀", r"\exists ": "∃", r"\to ": "→", r"\implies ": "⇒", r"\iff ": "⇔",
    r"\angle ": "∠", r"\triangle ": "△", r"\mathbb{R}": "ℝ", r"\mathbb{Z}": "ℤ", r"\mathbb{N}": "ℕ",
    r"\mathbb{Q}": "ℚ", r"\mathbb{C}": "ℂ", r"\phi ": "ϕφ", r"\epsilon ": "ϵε", r"\theta ": "ϑθ",
    ".": "。", ",": "，、", "/1000": "‰", r"\text{ m}^2": "㎡", r"\text{ m}^3": "㎥", r"\Omega ": "\u2126",
    "": "\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff\u00ad",
}  # fmt: skip
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
GREEK = frozenset(_GREEK.split())
_SIGNS = {ord(sign): spelling for spelling, signs in _SPELLINGS.items() for sign in signs}
_SIGNS |= {
    ord(unicodedata.lookup(f"GREEK {'SMALL' if name.islower() else 'CAPITAL'} LETTER {spelled}")): f"\\{name} "
    for name in GREEK
    for spelled in [name.upper().replace("LAMBDA", "LAMDA")]
    if name not in ("epsilon", "theta", "phi")
}
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ"
_LEVEL = str.maketrans(_RAISED + _LOWERED, "0123456789+-()ni" * 2)

_BOLD = re.compile(r"(?<![\w*)\]}])(\*{2,3})(?=[^\s*])([^*\n]+?)(?<=\S)\1(?![\w*(\[{\\])")
_WHOLLY = re.compile(
    r"^(?:#{1,6} (.+)|\*\*\s*([^*\n]+?)\s*\*\*|\*([^*\n]+)\*|__([^_\n]+)__|\"([^\"\n]*)\"|'([^'\n]*)')$"
)
_FENCE = re.compile(r"```\w*|`")
_SPELLED = {"&lt;": "<", "&gt;": ">", "&nbsp;": " ", "&amp;": "&", "&le;": "≤", "&ge;": "≥", "&minus;": "-",
           "per cent": "percent", r"\degree": r"^\circ "}  # fmt: skip
_ROW = re.compile(r"\\\\(?:\[[^\]]{0,20}\])?")
_SIZES = re.compile(
    r"\\(?:left|right|middle)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|"
    r"nolimits|rm|bf|it|tt|small|large|Large|normalsize|protect|unit)(?![a-zA-Z])"
)
_TIGHT = re.compile(r"(?<=\d)(?:,\\!|\{,\}|\\[,;: ]|,\\,(?=\d{3},\\,))\s*(?=\d{3}(?!\d))")
_BLANKS = re.compile(
    r"\\[,;:>]|\\(?=\s)|\\!|~|\\(?:q?quad|thinspace|enspace|medspace|thickspace|hfill|newline|par|noindent)(?![a-zA-Z])|"
    r"\\[hv]space\*?\s*\{[^{}]*\}|\\h?phantom\{[^{}]*\}|\\[()\[\]]|\s"
)
_ROW_MARK = "\x01"
_MODULES = re.compile(r"(?<![\w.])(?:math|cmath|np|numpy|sympy|sp|mpmath|mp)\.(?=[A-Za-z])")
_CELSIUS = re.compile(r"\^\s*\{?\s*\\circ\s*\}?\s*(?:\\(?:text|mathrm|rm)\s*\{?\s*)?([CF])\b\s*\}?")
_UNION = re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])")
_TIMES = re.compile(r"(?<=\d)\s*(?:\\text\{\s*)?[xX]\s*\}?\s*(?=\d)")
_EXPONENT = re.compile(r"(?<=\d)\s?\\(?:text|mathrm)\{([eE])\}\s?(?=[-+]?\d)")
_SPACED = re.compile(r"(?<![\w.,^])(?<!\d )\d{1,3}(?: \d{3})+(?!\d)(?! ?[/\d])")
_GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?!\d)(?!,\d)")
_ENCLOSED = re.compile(r"(?:[(\[]|(?<![a-zA-Z]){)\s*(?:-\s*)?$")
_OTHER_GROUPS = re.compile(r"(?<![\w.,'])\d{1,3}(?:(?:_\d{3})+|(?:'\d{3})+|(?:\.\d{3}){2,})(?![\w.,'])")
_INDIAN = re.compile(r"(?<![\w.,({\[])\d{1,2}(?:,\d{2})+,\d{3}(?![\w.,])")
_FRACTION_GROUPS = re.compile(r"(?<=\d)\.\d{3}(?: \d{3})*(?: \d{1,3})(?![\d/])")


@lru_cache(maxsize=64)  # each reading of one answer begins with it
def clean(text: str, answer: bool = False) -> str:
    """The text with one spelling of each sign, without typesetting and Markdown, its digits no longer in groups.

    Args:
        text: What was written.
        answer: Whether a policy wrote it; groups as in 12,34,567 are read only then, since a gold answer may list.
    """
    for entity, sign in _SPELLED.items():
        text = text.replace(entity, sign)
    text = _level(_FENCE.sub("", text).strip().translate(_SIGNS))
    text = "".join(map(_fraction, text)) if not text.isascii() else text
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = unmarked(text)
    text = _TIGHT.sub("", _ROW.sub(_ROW_MARK, _SIZES.sub(" ", text)))
    text = _BLANKS.sub(lambda space: "" if space[0] == "\\!" else " ", _dollars(text)).replace(_ROW_MARK, r" \\ ")
    text = _UNION.sub(r" \\cup ", text)
    text = _MODULES.sub("", _CELSIUS.sub(r"\\text{ deg\1}", re.sub(" {2,}", " ", text)))
    text = _bare(_EXPONENT.sub(r"\1", _TIMES.sub(" * ", _ungroup(text, answer))).strip())
    return text.rstrip(".,;: ") if not text.endswith("...") else text[:-3] + r"\ldots"


def _bare(text: str) -> str:
    """The text without the braces that hold all of it, unless they hold a set."""
    depth = 0
    for index, sign in enumerate(text if text[:1] == "{" and text[-1] == "}" and not {*",|:"} & {*text} else ""):
        depth += (sign == "{") - (sign == "}")
        if not depth:
            return _bare(text[1:-1].strip()) if index == len(text) - 1 else text
    return text


def unmarked(text: str) -> str:
    """The text without the stars and lines that set it in bold or italics."""
    while (bare := _WHOLLY.sub(r"\1\2\3\4\5\6", _BOLD.sub(r"\2", text)).strip()) != text:
        text = bare
    return text


def _level(text: str) -> str:
    """Raised and lowered signs as powers and indices, and around a slash as a fraction."""
    text = re.sub(f"([{_RAISED}]+)[⁄/]([{_LOWERED}]+)", r"\\frac{\1}{\2}", text)
    if r"\frac{" in text:
        text = re.sub(r"\\frac\{[^{}]*\}\{[^{}]*\}", lambda one: one[0].translate(_LEVEL), text)
    text = re.sub(f"[{_RAISED}]+", lambda run: f"^{{{run[0].translate(_LEVEL)}}}", text)
    return re.sub(f"[{_LOWERED}]+", lambda run: f"_{{{run[0].translate(_LEVEL)}}}", text)


def _fraction(sign: str) -> str:
    parts = unicodedata.decomposition(sign).split()
    if parts[:1] != ["<fraction>"] or "2044" not in parts:
        return sign
    slash = parts.index("2044")
    above, below = ("".join(chr(int(code, 16)) for code in part) for part in (parts[1:slash], parts[slash + 1 :]))
    return f"\\frac{{{above}}}{{{below}}}"


def _dollars(text: str) -> str:
    """Takes away the dollars that enclose mathematics, not those that are money."""
    bare = text.replace("\\$", "")
    if len(re.findall(r"\$(?=\s?-?\s?\.?\d)", bare)) == bare.count("$"):  # each before a number, so none closes
        return text.replace("\\$", "$").replace("$", "\\$")
    return re.sub(r"(?<!\\)\$", " ", text)


def _ungroup(text: str, answer: bool) -> str:
    def join(match: re.Match[str]) -> str:
        return re.sub(r"[ ,_'.]", "", match[0])

    text = _OTHER_GROUPS.sub(join, _SPACED.sub(join, text))
    text = _FRACTION_GROUPS.sub(lambda match: match[0].replace(" ", ""), text)
    if answer:
        text = _INDIAN.sub(join, text)
    spaced_list = re.search(r"[,;] ", text) is not None

    def commas(match: re.Match[str]) -> str:  # (1,234) is a point, 1,234 a number
        enclosed = _ENCLOSED.search(text[max(0, match.start() - 4) : match.start()])
        return match[0] if enclosed and not spaced_list else join(match)

    return _GROUPED.sub(commas, text)
