"""The answer that a sentence states, and what a text without a box does not state: guesses, denials, conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from components.environments.math.equality.text import unmarked

LENGTH = 2000  # characters at the end of a text in which its answer stands

LINKS = 4  # places in a sentence at which its answer may begin, from its end

_SENTENCES = re.compile(
    r"(?<=[.!?])(?<!\d\.)(?<!\b[a-zA-Z]\.)(?<!\\!)\s+|(?<=[.!?][*$)])\s+|(?<=\d\.)\s+(?=[A-Z\\$*])|\n+"
)
_HEDGES = re.compile(
    r"\b(?:not|no|nope|never|neither|nor|none|nothing|cannot|wrong\w*|incorrect\w*|false|fail\w*|errors?|"
    r"mistaken?s?|either|maybe|perhaps|possibl[ey]|possibilit\w*|probably|presumably|might|could|may|guess\w*|"
    r"unsure|uncertain\w*|sure|doubt\w*|if|unless|whether|suppos\w*|assum\w*|claim\w*|say|says|said|between|least|"
    r"most|than|except|give up|gave up|stuck|tried|try|trying|instead|however|although|though|actually|wait|hmm+|"
    r"oops|sorry|rather|unlikely|likely|impossible|contradict\w*|somewhere|unknown|anything|alternatively|hope\w*|"
    r"imagine\w*|pretend\w*|random|dunno|idk|would have been|used to|thinks?|thought|believes?d?|friend|textbook|"
    r"far from|reject\w*|rule[ds]? out|without|someone|somebody|else|scratch|correction|never mind|second thought|"
    r"hardly|ignore|disregard|example|opposite|excluding|other|differs?|different)\b|n['’]t\b|\?|≠|!=|\\(?:neq?|"
    r"not)(?![a-zA-Z])",
    re.IGNORECASE,
)
_TURNS = re.compile(
    r"\b(?:so|therefore|thus|hence|in conclusion|finally)\b,?|,\s*but\b|\bbut (?=the |it |then |now )", re.IGNORECASE
)
_LINKS = re.compile(
    r"\b(?:(?:follows|conclude|see|shows?|means|implies|deduce|know) that|is|are|was|were|be|equals?|equal to|"
    r"gives?|gets?|got|obtain(?:s|ed)?|have|has|had|makes?|made|costs?|becomes?|needs?|left with|answer|ans|"
    r"result|solutions?|options?|choice|find|found|totals?|sells?|sold|spends?|spent|earns?|earned|pays?|paid|"
    r"takes?|took|leaves?|left|receives?|saves?|saved|uses?|used|buys?|bought|eats?|ate|reads?|runs?|drives?|"
    r"travels?|weighs?|owes?|walks?|produces?|collects?|scores?|contains?|holds?|wins?)\b\s*(?:us|me|"
    r"you)?\s*(?:simply|just|exactly|therefore|thus|then|equal to|given by|that|a total of|in total)?[\s:*]*",
    re.IGNORECASE,
)
_MARK = re.compile(r"\b(?:answers?|ans|results?|solutions?|options?|choice)\b", re.IGNORECASE)
_REASON = re.compile(
    r"\s+\([^()]*[a-z]{2}.*$|[,;]?\s+(?:because|since|as required|which|so that|due to|after|when)\b.*$",
    re.I | re.DOTALL,
)
_PIECE = re.compile(
    r"\$[^$]+\$|\\\(.+?\\\)|[$€£¥]?\s?-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?(?:\s?%|°)?(?:\s?[/:^]\s?\d+)*"
)
# What changes a number that stands before it: such a sentence does not state the number.
_CHANGED = re.compile(
    r"\b(?:or|and|if|for|when|mod|modulo|factorial|squared|cubed|times|plus|minus|divided|divides|over|choose|"
    r"to(?= \d)|than|less|halves|thirds|quarters|fifths|tenths|point|percent|hundred|thousand|million|"
    r"billion|trillion|dozen|twice)\b|[=<>+*/^]",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"(\$[^$]+\$|\S+)\s+is (?:the|our) (?:only |final |correct |desired |required )*(?:answer|solution|value|result)\b",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^\s*(?:[-*•>#]+\s+|\(?\d+[.)]\s+)")


def is_prose(text: str) -> bool:
    """Whether a text says its answer in words."""
    bare = re.sub(r"\\(?!text|mbox|mathrm)[a-zA-Z]+", " ", text[-LENGTH:])
    return re.search(r"[A-Za-z]{2,}|####", bare) is not None


def statements(text: str) -> Iterator[tuple[str, bool]]:
    """What the last sentence that answers may state, the most likely first, and whether it is hedged or denied.

    A hedge counts in that sentence, after its last "so" or ", but", and in all sentences after it. A hedged statement
    is no value, but may be the text that is wanted, as in: the answer is "at least 5".
    """
    text = re.sub(r"\\(?:text|textbf|mbox|mathrm)\s*\{([^{}]*)\}", r"\1", unmarked(text[-LENGTH:]))
    if "####" in text:  # as solutions of GSM8K end
        yield text.rpartition("####")[2].strip(), False
        return
    text = re.sub(r":(\**)\s*\n+\s*", r":\1 ", text)
    sentences = [sentence.strip() for sentence in _SENTENCES.split(text) if sentence.strip()]
    stating = [n for n, sentence in enumerate(sentences) if _MARK.search(sentence) and _PIECE.search(sentence)]
    stating = stating or [n for n, sentence in enumerate(sentences) if _PIECE.search(sentence)]
    stating = stating or [n for n, sentence in enumerate(sentences) if _MARK.search(sentence)] or [len(sentences) - 1]
    if not sentences or _HEDGES.search(" ".join(sentences[stating[-1] + 1 :])):
        return
    sentence = sentences[stating[-1]]
    if turns := list(_TURNS.finditer(sentence)):
        sentence = sentence[turns[-1].end() :]
    hedged = _HEDGES.search(sentence) is not None
    sentence = _BULLET.sub("", sentence)
    for link in list(_LINKS.finditer(sentence))[: -LINKS - 1 : -1]:
        if (tail := sentence[link.end() :].strip(" :*")) and not _HEDGES.search(sentence, 0, link.start()):
            yield tail, hedged
            if hedged:
                continue
            yield _REASON.sub("", tail), False
            number = _PIECE.match(tail)
            if number and not _PIECE.search(tail, number.end()) and not _CHANGED.search(tail, number.end()):
                yield number[0], False  # makes 18 dollars every day
    if hedged:
        return
    if subject := _SUBJECT.match(sentence):
        yield subject[1], False
    if turns or len(sentences) > 1:
        yield sentence, False
    before, _, clause = sentence.rpartition(", ")
    if "=" in clause and "=" not in before:
        yield clause, False  # dividing by two, x = 5
