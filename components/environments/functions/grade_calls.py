"""Whether the function calls of a rollout do what was asked, by the package bfcl-eval."""

from __future__ import annotations

from typing import Any

from components.environments.functions import bfcl
from components.environments.functions.verdicts import do_what_was_asked

bfcl.multi_turn_checker()  # imported here, once, and not by every child
bfcl.ast_checker()


def grade(case: list[Any]) -> bool:
    """The verdict on [gold answer, the prompt's metadata, answer]."""
    gold, task, answer = case
    return do_what_was_asked(gold, task, answer)
