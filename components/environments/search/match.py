"""Answers to questions: exact match and F1 after normalisation, over all accepted answers.

Two normalisations have names. `official` is that of the SQuAD evaluation (Rajpurkar et al. 2016, arXiv 1606.05250):
lower case, no ASCII punctuation, no articles, single blanks. It takes 1.5 for 15, C++ for C, -5 for 5 and Vitamin A for
Vitamin, and it tells one text in two spellings apart. `careful` mends both:

- One text: composed and decomposed letters (NFC); typographic quotes, dashes, minus, full-width letters, ligatures and
  blanks; `&` and "and"; "5 %" and "5 percent"; 1,000 and 1000; 1939 - 1945 and 1939-1945. Hyphens and slashes between
  words may stand, be blanks, or be left out.
- Signs that carry meaning stay, in the gold answer and in what was answered alike: minus and point before a number;
  what joins two numbers (1.5, 3-2, 9/11, 5:30, 10^6); + # % after a word or number (C++, C#, 50%), minus after a letter
  (A-); # $ < > ~ before a number (#1, $5); signs outside of ASCII (5 €, 90°). Other punctuation goes. The last word is
  no article (Vitamin A).

With either, an answer of which nothing would be left ("+") is compared as it stands. F1, and the rule that yes and no
have no half-right answers, are those of HotpotQA's evaluation (Yang et al. 2018, arXiv 1809.09600).

Graded rewards and the allocation: Eq. 12, 14 and 15 count contrasts between two outcomes, so they need the chance
P(r > 0.5 | H), not the mean of r; at the mean they only overrate, since Var(r | H) <= V (1 - V). Success is therefore
r > `components.tree.anchors.SUCCESS` wherever successes are counted or predicted. The policy learns from r itself: for
it an F1 in [0.3, 0.5] is partial credit, for the allocation a failure.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

from components.environments.base import Prompt

LEAST_F1 = 0.3
LONGEST = 10_000  # characters that `careful` reads; no accepted answer comes near
_CLOSED = {"yes", "no", "noanswer"}  # an answer of this kind has no half-right ones

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

_SAME = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′ʹʼ`´", "'"),
        **dict.fromkeys("“”„‟″«»‹›", '"'),
        **dict.fromkeys("‐‑‒–—―−﹘﹣", "-"),
        **dict.fromkeys("⁄∕", "/"),
        **dict.fromkeys("\xad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", ""),
        "&": " and ",
    }
)
_FORMS = ("<wide>", "<narrow>", "<noBreak>", "<compat>")  # of one letter, by its Unicode decomposition
_OTHER = "".join(c for c in map(chr, range(0x80, 0x10000)) if unicodedata.category(c)[0] == "P" and c not in "‰‱٪")
_NUMBERS = (
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=\d) ?(?:%|per ?cent\b)"), "%"),
    (re.compile(r"(?<=\d) ?- ?(?=\d)"), "-"),
    (re.compile(r"\$ (?=\d)"), "$"),
)
_SIGN = re.compile(
    r"(?P<kept>(?<!\w)-(?=\.?\d)|(?<!\w)\.(?=\d)|(?<=\d)[-.:/^*=+'](?=\d)|(?<=[\w+#])[+#%]|[#$<>~](?=[-.]?\d)"
    r"|(?:(?<=\b[a-z])|(?<=\bab))-(?!\w))"
    rf"|(?P<either>[-/])|(?P<gone>['\".!?*])|[{re.escape(string.punctuation + _OTHER)}]"
)
_ARTICLE = re.compile(r"(?<!\S)(?:a|an|the) (?=\S)")


def official(text: str) -> list[str]:
    """The normal form of SQuAD's evaluation."""
    lowered = text.lower()
    kept = " ".join(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)).split())
    return [kept or " ".join(lowered.split())]


def careful(text: str) -> list[str]:
    """The normal forms, with hyphens as blanks and without them; see the module's text."""
    text = given = unicodedata.normalize("NFC", text.strip()[:LONGEST])
    if not text.isascii():
        text = "".join(map(_one_form, text))
    text = " ".join(unicodedata.normalize("NFC", text.translate(_SAME).casefold()).split())
    bare = text or given
    for pattern, written in _NUMBERS:
        text = pattern.sub(written, text)
    marked = _SIGN.sub(lambda m: m[0] if m["kept"] else "\0" if m["either"] else "" if m["gone"] else " ", text)
    forms = [" ".join(marked.replace("\0", hyphen).split()) for hyphen in (" ", "")]
    return list(dict.fromkeys(_ARTICLE.sub("", form) or bare for form in forms))


def _one_form(letter: str) -> str:
    """The plain form of a full-width letter, a ligature and the like; powers and circled numbers stay what they are."""
    kind = unicodedata.decomposition(letter).partition(" ")[0]
    if kind == "<fraction>":
        return f" {unicodedata.normalize('NFKC', letter)}"
    return unicodedata.normalize("NFKC", letter) if kind in _FORMS else letter


MATCH: dict[str, Callable[[str], list[str]]] = {"careful": careful, "official": official}


def f1(given: str, wanted: str) -> float:
    """Harmonic mean of the precision and the recall of the words of normal forms, in [0, 1]; 0 for yes against no."""
    if given != wanted and (given in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, gold_words = given.split(), wanted.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2.0 * common / (len(words) + len(gold_words)) if common else 0.0


def reward(prompt: Prompt, answer: str | None, graded: bool = False, match: str = "careful") -> float:
    """The best reward over the gold answer and the aliases in ``prompt.metadata["aliases"]``; 0 without an answer.

    Args:
        prompt: The question.
        answer: What was answered.
        graded: 1 for an exact match, else F1 where it is at least 0.3, else 0 (the paper's reward on this task); by
            default 1 for an exact match, else 0. See the module's text for what that means to the allocation.
        match: The normalisation, a key of `MATCH`.

    Raises:
        TypeError: if the aliases are no list of texts.
    """
    accepted = [MATCH[match](gold) for gold in (prompt.answer, *_aliases(prompt))]
    given = MATCH[match](answer or "")
    if any(form and form in wanted for form in given for wanted in accepted):
        return 1.0
    best = max(f1(given[0], wanted[0]) for wanted in accepted) if graded else 0.0
    return best if best >= LEAST_F1 else 0.0


def _aliases(prompt: Prompt) -> list[str]:
    aliases = prompt.metadata.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise TypeError(f"prompt {prompt.prompt_id}: the aliases should be a list of texts, found {aliases!r:.80}")
    return aliases
