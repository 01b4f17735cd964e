"""Answers to questions: exact match and F1 after the usual normalisation, over all accepted answers.

Normalisation and measures are those of the official SQuAD evaluation (Rajpurkar et al. 2016, arXiv 1606.05250) and, for
the rule on yes and no, of HotpotQA's (Yang et al. 2018, arXiv 1809.09600): lower case, no ASCII punctuation, no
articles, single blanks. An answer that holds nothing else ("+", "The The") is compared as it stands.

What graded rewards mean for the allocation
-------------------------------------------
The binary reward is what the mathematics is about: V = P(r = 1 | H), and m draws are all alike with chance
V^m + (1-V)^m. With a graded reward r in [0, 1], V = E[r | H] is a mean, and Eq. 12 and 15 at that mean are no longer
chances. They err to one side: E[r^2] <= E[r], so Var(r | H) <= V (1-V), with equality only for 0/1 rewards. A prompt
whose every rollout earns 0.4 has no contrast at all; Eq. 12 at v = 0.4 and m = 4 says 0.84.

The contrast that Eq. 12, 14 and 15 count is between two outcomes, so a graded reward is first turned into one:
success is r > `components.tree.anchors.SUCCESS` (0.5), and v must be the chance P(r > 0.5 | H), not the mean of r. Then
both equations hold exactly, for the outcome. So, with graded rewards:

- the anchors' successes and failures, and flips, are counted by the outcome;
- the predictor must learn the outcome: its target is Eq. 18 with the indicator of success in place of r, or else the
  beliefs that it hands to the allocator are of another quantity than the anchors' counts;
- the policy learns from r itself: advantages need no outcome, and a tree whose rewards differ within one outcome
  (0.3 and 0.4) still has a gradient, though the allocation sought none there.

An F1 in [0.3, 0.5] is therefore partial credit for the policy and a failure to the allocator.
"""

from __future__ import annotations

import re
import string
from collections import Counter

from components.environments.base import Prompt

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = {"yes", "no", "noanswer"}  # an answer of this kind has no half-right ones
LEAST_F1 = 0.3


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks; the text itself where nothing would be left."""
    lowered = text.lower()
    kept = " ".join(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)).split())
    return kept or " ".join(lowered.split())


def exact_match(answer: str, gold: str) -> bool:
    """Whether the normal forms are equal; an empty answer matches nothing."""
    given = normalise(answer)
    return bool(given) and given == normalise(gold)


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of the precision and the recall of the answer's words, in [0, 1]; 0 for yes against no."""
    return _overlap(normalise(answer), normalise(gold))


def _overlap(given: str, wanted: str) -> float:
    if given != wanted and (given in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, gold_words = given.split(), wanted.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2.0 * common / (len(words) + len(gold_words)) if common else 0.0


def reward(prompt: Prompt, answer: str | None, graded: bool = False) -> float:
    """The best reward over the gold answer and the aliases in ``prompt.metadata["aliases"]``; no answer is a wrong answer.

    Args:
        prompt: The question.
        answer: What was answered.
        graded: 1 for an exact match, else F1 where it is at least 0.3, else 0 (the paper's reward on this task); by
            default 1 for an exact match, else 0. See the module's text for what that means to the allocation.

    Raises:
        TypeError: if the aliases are no list of texts.
    """
    accepted = [normalise(gold) for gold in (prompt.answer, *_aliases(prompt))]
    given = normalise(answer or "")
    if not given:
        return 0.0
    if given in accepted:
        return 1.0
    best = max(_overlap(given, wanted) for wanted in accepted) if graded else 0.0
    return best if best >= LEAST_F1 else 0.0


def _aliases(prompt: Prompt) -> list[str]:
    aliases = prompt.metadata.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise TypeError(f"prompt {prompt.prompt_id}: the aliases should be a list of texts, found {aliases!r:.80}")
    return aliases
