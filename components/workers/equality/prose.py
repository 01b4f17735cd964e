"""The answer that a sentence states, and what a text without a box does not state: guesses, denials, conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator

LENGTH = 2000  # characters at the end of a text in which its answer stands

_SENTENCES = re.compile(r"(?<=[.!?])(?<!\d\.)(?<!\b[a-zA-Z]\.)\s+|(?<=[.!?][*$)])\s+|(?<=\d\.)\s+(?=[A-Z\\$*])|\n+")
_HEDGES = re.compile(
    r"\b(?:not|no|nope|never|neither|nor|none|cannot|wrong\w*|incorrect\w*|false|fail\w*|errors?|mistaken?s?|either|maybe|"
    r"perhaps|possibl[ey]|possibilit\w*|probably|presumably|might|could|may|guess\w*|unsure|uncertain\w*|sure|doubt\w*|"
    r"if|unless|whether|suppos\w*|assum\w*|claim\w*|say|says|said|between|least|most|than|except|give up|gave up|stuck|"
    r"tried|try|trying|instead|however|although|though|actually|wait|hmm+|oops|sorry|rather|unlikely|likely|impossible|"
    r"contradict\w*|somewhere|unknown|anything|alternatively|hope\w*|imagine\w*|pretend\w*|random|dunno|idk|"
    r"would have been|used to|thinks?|thought|believes?d?|friend|textbook|far from|reject\w*|rule[ds]? out|without|"
    r"hardly|ignore|disregard|example|opposite|excluding|other)\b|n['’]t\b|\?|\\(?:neq?|not)(?![a-zA-Z])|≠|!=",
    re.IGNORECASE,
)
_TURNS = re.compile(r"\b(?:so|therefore|thus|hence|but|in conclusion|finally)\b,?", re.IGNORECASE)
_LINKS = re.compile(
    r"\b(?:is|are|was|be|equals?|equal to|gives?|get|gets|obtain|have|has|makes?|costs?|becomes?|need|needs|are left with|"
    r"answer:|result:|answer|solution|option|choice|find|total|totals|sells?|spends?|earns?|pays?|takes?|leaves?)\b\s*"
    r"(?:simply|just|exactly|therefore|thus|then|equal to|given by|that|:)?[\s:*]*",
    re.IGNORECASE,
)
_MARK = re.compile(r"\b(?:answer|result|solution)\b", re.IGNORECASE)
_REASON = re.compile(
    r"[,;]?\s+(?:because|since|as required|which|so that|due to|after|when)\b.*$", re.IGNORECASE | re.DOTALL
)
_PIECE = re.compile(
    r"\$[^$]+\$|\\\(.+?\\\)|[$€£¥]?\s?-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?(?:\s?%|°)?(?:\s?[/:^]\s?\d+)*"
)
_BULLET = re.compile(r"^\s*(?:[-*•>#]+\s+|\(?\d+[.)]\s+)")


def is_prose(text: str) -> bool:
    """Whether a text says its answer in words."""
    return re.search(r"[A-Za-z]{2,}|####", text) is not None


def statements(text: str) -> Iterator[str]:
    """What the last sentence that answers may state, the most likely first; nothing where that is hedged or denied.

    A hedge counts in that sentence, after its last "so" or "but", and in all sentences after it.
    """
    text = text[-LENGTH:]
    if "####" in text:  # as solutions of GSM8K end
        yield text.rpartition("####")[2].strip()
        return
    sentences = [sentence.strip() for sentence in _SENTENCES.split(text) if sentence.strip()]
    stating = [n for n, sentence in enumerate(sentences) if _MARK.search(sentence) and _PIECE.search(sentence)]
    stating = stating or [n for n, sentence in enumerate(sentences) if _PIECE.search(sentence)]
    stating = stating or [n for n, sentence in enumerate(sentences) if _MARK.search(sentence)]
    if not stating:
        return
    if _HEDGES.search(" ".join(sentences[stating[-1] + 1 :])):
        return
    sentence = sentences[stating[-1]]
    turns = list(_TURNS.finditer(sentence))
    if turns and len(sentence) > turns[-1].end():
        sentence = sentence[turns[-1].end() :]
    if _HEDGES.search(sentence):
        return
    sentence = _BULLET.sub("", sentence)
    for link in reversed(list(_LINKS.finditer(sentence))):
        if tail := sentence[link.end() :].strip(" :*"):
            yield tail
            yield _REASON.sub("", tail)
    pieces = {piece.strip(" ,.") for piece in _PIECE.findall(sentence)}
    if len(pieces) == 1 and not re.search(r"\bor\b", sentence):
        yield pieces.pop()
