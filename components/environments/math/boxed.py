"""The last \\boxed{...} of a text: where a mathematical answer stands."""

from __future__ import annotations

import re

_MARK = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BESIDE = re.compile(r"[\s$,;.]*(?:\\text\s*\{)?\s*(?:,|;|and|or|&|\\quad|\\\\)\s*\}?[\s$]*", re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    """What the last complete ``\\boxed{...}`` (or ``\\fbox``) holds, blanks removed; None where there is none.

    Boxes that hold nothing do not count. Boxes that only "and", "or" or a comma keeps apart are one list. Braces may
    nest, and escaped ones do not count. Of nested boxes the outer one counts. Linear in the text's length.
    """
    open_braces: list[tuple[int, int]] = []  # where an open box and its content begin; -1 for another brace
    found: list[tuple[int, int, int, int]] = []
    for mark in _MARK.finditer(text):
        if mark[0] == "}":
            if open_braces:
                outside, begin = open_braces.pop()
                if begin >= 0 and text[begin : mark.start()].strip():
                    while found and found[-1][0] > outside:
                        found.pop()  # it lies within this one
                    found.append((outside, begin, mark.start(), mark.end()))
        elif mark[0][-1] == "{" and mark[0] != "\\{":
            boxed = len(mark[0]) > 1
            open_braces.append((mark.start(), mark.end()) if boxed else (-1, -1))
    if not found:
        return None
    last = len(found) - 1
    while last and len(between := text[found[last - 1][3] : found[last][0]]) < 40 and _BESIDE.fullmatch(between):
        last -= 1
    parts = [text[begin:end].strip() for _, begin, end, _ in found[last:]]
    return ", ".join(dict.fromkeys(parts))
