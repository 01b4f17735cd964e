"""The last \\boxed{...} of a text: where a mathematical answer stands."""

from __future__ import annotations

import re

_MARK = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    """What the last complete ``\\boxed{...}`` (or ``\\fbox``) holds, blanks removed; None where there is none.

    Braces may nest, and escaped ones do not count. Of nested boxes the outer one counts. Linear in the text's length.
    """
    open_braces: list[int] = []  # where the content of an open box begins; -1 for another brace
    found: tuple[int, int] | None = None
    for mark in _MARK.finditer(text):
        if mark[0] == "}":
            if open_braces and (begin := open_braces.pop()) >= 0:
                found = (begin, mark.start())
        elif mark[0][-1] == "{" and mark[0] != "\\{":
            open_braces.append(mark.end() if len(mark[0]) > 1 else -1)
    return text[slice(*found)].strip() if found else None
