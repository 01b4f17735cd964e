"""A cleaned text as a list of tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from components.environments.math.equality.words import listed

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
    "langle": "(", "rangle": ")", "lparen": "(", "rparen": ")", "prime": "'", "euro": "€", "pounds": "£",
}  # fmt: skip
_QUOTING = listed("text textrm textbf textit textsf texttt textnormal textup mbox hbox mathrm operatorname")
_STYLING = listed("mathbf mathit mathsf mathtt boldsymbol bm emph underline ensuremath boxed fbox mathcal")
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
