"""One spelling for one sign: what a text says, as a list of tokens of LaTeX, plain text and Python alike."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_SPELLINGS = {
    "-": "−–—‐‑‒―﹣－", "*": "∗＊", "/": "⁄∕", r"\times ": "×✕✖", r"\cdot ": "·⋅∙•", r"\div ": "÷",
    r"\le ": "≤≦⩽", r"\ge ": "≥≧⩾", r"\ne ": "≠", r"\approx ": "≈", r"\equiv ": "≡", r"\infty ": "∞",
    r"\sqrt ": "√", r"\sqrt[3]": "∛", r"\sqrt[4]": "∜", r"\pm ": "±", r"\mp ": "∓", r"\cup ": "∪", r"\cap ": "∩",
    r"\in ": "∈", r"\notin ": "∉", r"\emptyset ": "∅", r"\setminus ": "∖", r"^\circ ": "°º˚", "'": "′’‘ʹ",
    "''": "″", '"': "“”", r"\ldots ": "…", "(": "⟨〈", ")": "⟩〉", r"\lfloor ": "⌊",
    r"\rfloor ": "⌋", r"\lceil ": "⌈", r"\rceil ": "⌉", r"\sum ": "∑", r"\prod ": "∏", r"\int ": "∫", r"\mid ": "∣",
    r"\nmid ": "∤", r"\forall ": "∀", r"\exists ": "∃", r"\to ": "→", r"\implies ": "⇒", r"\iff ": "⇔",
    r"\angle ": "∠", r"\triangle ": "△", r"\mathbb{R}": "ℝ", r"\mathbb{Z}": "ℤ", r"\mathbb{N}": "ℕ",
    r"\mathbb{Q}": "ℚ", r"\mathbb{C}": "ℂ", r"\phi ": "ϕφ", r"\epsilon ": "ϵε", r"\theta ": "ϑθ", ".": "。", ",": "，、",
    "": "\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff\u00ad",
}  # fmt: skip
_GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
]
_SIGNS = {ord(sign): spelling for spelling, signs in _SPELLINGS.items() for sign in signs}
_SIGNS |= {
    ord(unicodedata.lookup(f"GREEK {'SMALL' if name.islower() else 'CAPITAL'} LETTER {spelled}")): f"\\{name} "
    for name in _GREEK
    for spelled in [name.upper().replace("LAMBDA", "LAMDA")]
    if name not in ("epsilon", "theta", "phi")
}
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ"
_LEVEL = str.maketrans(_RAISED + _LOWERED, "0123456789+-()ni" * 2)

GREEK = frozenset(_GREEK)
_ALIASES = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "varnothing": "emptyset", "infin": "infty", "lbrace": "{",
    "rbrace": "}", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "varphi": "phi",
    "varepsilon": "epsilon", "vartheta": "theta", "lbrack": "[", "rbrack": "]", "bmod": "pmod", "mod": "pmod",
    "arcctg": "arccot", "ctg": "cot", "tg": "tan", "arctg": "arctan", "backslash": "setminus", "land": "wedge",
    "lor": "vee", "rightarrow": "to", "Rightarrow": "implies", "divides": "mid", "cosec": "csc",
}  # fmt: skip
_PLAIN = {
    "lt": "<", "gt": ">", "ast": "*", "colon": ":", "vert": "|", "lvert": "|", "rvert": "|", "div": "/", "%": "%",
    "$": "$", "#": "#", "&": "&", "_": "_", "lbrack": "[", "rbrack": "]", "cdotp": "*", "cdot": "*", "times": "*",
    "langle": "(",
    "rangle": ")",
    "lparen": "(", "rparen": ")", "prime": "'", "euro": "€", "pounds": "£",
}  # fmt: skip
_QUOTING = frozenset(
    [
        "text",
        "textrm",
        "textbf",
        "textit",
        "textsf",
        "texttt",
        "textnormal",
        "textup",
        "mbox",
        "hbox",
        "mathrm",
        "operatorname",
    ]
)
_STYLING = frozenset(
    [
        "mathbf",
        "mathit",
        "mathsf",
        "mathtt",
        "boldsymbol",
        "bm",
        "emph",
        "underline",
        "ensuremath",
        "boxed",
        "fbox",
        "mathcal",
    ]
)

_BOLD = re.compile(r"(?<![\w*)\]}])(\*{2,3})(?=[^\s*])([^*\n]+?)(?<=\S)\1(?![\w*(\[{\\])")
_WHOLLY = re.compile(
    r"^(?:#{1,6} (.+)|\*\*\s*([^*\n]+?)\s*\*\*|\*([^*\n]+)\*|__([^_\n]+)__|\"([^\"\n]*)\"|'([^'\n]*)')$"
)
_FENCE = re.compile(r"```\w*|`")
_ENTITY = {
    "&lt;": "<",
    "&gt;": ">",
    "&nbsp;": " ",
    "&amp;": "&",
    "&le;": "≤",
    "&ge;": "≥",
    "&minus;": "-",
    "per cent": "percent",
}
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
_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=\d)")
_SPACED = re.compile(r"(?<![\w.,^])(?<!\d )\d{1,3}(?: \d{3})+(?!\d)(?! ?[/\d])")
_GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?!\d)(?!,\d)")
_ENCLOSED = re.compile(r"(?:[(\[]|(?<![a-zA-Z]){)\s*(?:-\s*)?$")
_OTHER_GROUPS = re.compile(r"(?<![\w.,'])\d{1,3}(?:(?:_\d{3})+|(?:'\d{3})+|(?:\.\d{3}){2,})(?![\w.,'])")
_INDIAN = re.compile(r"(?<![\w.,({\[])\d{1,2}(?:,\d{2})+,\d{3}(?![\w.,])")
_FRACTION_GROUPS = re.compile(r"(?<=\d)\.\d{3}(?: \d{3})*(?: \d{1,3})(?![\d/])")

_TOKEN = re.compile(
    r"(?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[ap]\.\s?m\b\.?|[^\W\d_]+)|"
    r"\\(?P<cmd>[a-zA-Z]+\*?|.)|(?P<op>\*\*|<=|>=|!=|==|->|:=|[^\s\w\\]|_)",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A piece of a text.

    Attributes:
        kind: ``num``, ``word`` (letters), ``cmd`` (of LaTeX, without its backslash) or ``op`` (any other sign).
        text: Its spelling.
        space: Whether a blank stands before it.
        quoted: Whether it stands in upright text, as in ``\\text{cm}``: a word, then, and no product of letters.
    """

    kind: str
    text: str
    space: bool = False
    quoted: bool = False

    def is_op(self, *signs: str) -> bool:
        return self.kind == "op" and self.text in signs

    def is_cmd(self, *names: str) -> bool:
        return self.kind == "cmd" and self.text in names


def clean(text: str, answer: bool = False) -> str:
    """The text with one spelling of each sign, without typesetting and Markdown, its digits no longer in groups.

    Args:
        text: What was written.
        answer: Whether a policy wrote it; groups as in 12,34,567 are read only then, since a gold answer may list.
    """
    for entity, sign in _ENTITY.items():
        text = text.replace(entity, sign)
    text = _level(_FENCE.sub("", text).replace(r"\degree", r"^\circ ").strip().translate(_SIGNS))
    text = "".join(map(_fraction, text)) if not text.isascii() else text
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = unmarked(text)
    text = _TIGHT.sub("", _ROW.sub(_ROW_MARK, _SIZES.sub(" ", text)))
    text = _BLANKS.sub(lambda space: "" if space[0] == "\\!" else " ", _dollars(text)).replace(_ROW_MARK, r" \\ ")
    text = _UNION.sub(r" \\cup ", text)
    text = _MODULES.sub("", _CELSIUS.sub(r"\\text{ deg\1}", re.sub(" {2,}", " ", text)))
    text = _bare(_TIMES.sub(" * ", _ungroup(text, answer)).strip())
    return text.rstrip(".,;: ") if not text.endswith("...") else text[:-3] + r"\ldots"


def _bare(text: str) -> str:
    """The text without the braces that hold all of it, unless they hold a list."""
    depth = 0
    for index, sign in enumerate(text if text[:1] == "{" and text[-1] == "}" and "," not in text else ""):
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
    """Raised and lowered signs as powers and indices."""
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


def tokenise(text: str) -> list[Token]:
    """The tokens of a cleaned text. Braces that only enclose upright or styled text are left out."""
    tokens: list[Token] = []
    closers: list[str] = []  # of the open braces: "quoted", "styled" or "kept"
    opening, space, position = "", False, 0
    for match in _TOKEN.finditer(text):
        space = space or match.start() > position
        position = match.end()
        kind, piece = str(match.lastgroup), match[match.lastgroup or 0]
        if kind == "cmd":
            name = piece.rstrip("*")
            if name in _QUOTING or name in _STYLING:
                opening = "quoted" if name in _QUOTING else "styled"
                continue
            if name == "mathbb":
                opening = "set"
                continue
            if name in _PLAIN:
                kind, piece = "op", _PLAIN[name]
            else:
                piece = _ALIASES.get(name, name) or name
        if kind == "op" and piece == "{" and opening != "set":
            closers.append(opening or "kept")
            opening, hidden = "", bool(opening)
            if hidden:
                space = True
                continue
        elif kind == "op" and piece == "}" and closers:
            if closers.pop() != "kept":
                continue
        elif opening == "set":
            if piece == "{":
                closers.append("styled")
                continue
            kind, piece = "cmd", f"mathbb{{{piece}}}"
        if kind == "word" and piece[1:2] == ".":
            piece = piece[0] + "m"
        tokens.append(Token(kind, piece, space, "quoted" in closers or opening == "quoted"))
        opening = ""
        space = False
    return tokens


def spelling(tokens: list[Token], fold: bool = False) -> str:
    """The tokens as a text that compares what cannot be read as mathematics; `fold` makes words lower-case."""
    words = []
    for index, token in enumerate(tokens):
        lone = token.is_op("{") and tokens[index + 2 : index + 3] and tokens[index + 2].is_op("}")
        if token.is_op(".", '"') or lone or (token.is_op("}") and index > 1 and tokens[index - 2].is_op("{")):
            continue
        word = token.text.casefold() if fold and token.kind == "word" and len(token.text) > 1 else token.text
        words.append(_number(word))
    return " ".join(words)


def _number(word: str) -> str:
    return word.rstrip("0").rstrip(".") if re.fullmatch(r"\d+\.\d*", word, re.ASCII) else word
