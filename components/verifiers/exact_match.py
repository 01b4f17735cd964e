"""Exact match: the answer equals the gold answer, up to case and surrounding blanks."""

from __future__ import annotations

from components.environments.base import Prompt


class ExactMatch:
    """1 where the answer is the gold answer, else 0; no answer is a wrong answer."""

    def score(self, prompt: Prompt, answer: str | None) -> float:
        return float(answer is not None and answer.strip().lower() == prompt.answer.strip().lower())
