"""Verifiers: terminal rewards, by the environment that they judge."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING

from components.errors import UserError
from components.verifiers.base import Outcome, Verifier, verify, verify_all
from components.verifiers.exact_match import ExactMatch

if TYPE_CHECKING:
    from components.config import EnvironmentParams


def _exact(settings: EnvironmentParams) -> Verifier:
    return ExactMatch()


def _search(settings: EnvironmentParams) -> Verifier:
    from components.verifiers.qa import QuestionAnswering

    return QuestionAnswering(settings.graded)


def _math(settings: EnvironmentParams) -> Verifier:
    from components.verifiers.math import MathVerify

    return MathVerify()


def _functions(settings: EnvironmentParams) -> Verifier:
    from components.verifiers.functions import FunctionCalls

    return FunctionCalls()


VERIFIERS: dict[str, Callable[[EnvironmentParams], Verifier]] = {
    "multihop": _exact,
    "calculator": _exact,
    "devices": _exact,
    "search": _search,
    "math": _math,
    "functions": _functions,
}


def make_verifier(settings: EnvironmentParams) -> Verifier:
    """The verifier of an environment.

    Raises:
        UserError: if its `score` does not take a prompt and an answer, which would fail on every rollout.
    """
    verifier = VERIFIERS[settings.name](settings)
    try:
        signature(verifier.score).bind(None, None)
    except (AttributeError, TypeError) as error:
        raise UserError(f"the verifier of {settings.name} needs a method score(prompt, answer): {error}") from None
    return verifier


__all__ = ["VERIFIERS", "Outcome", "Verifier", "make_verifier", "verify", "verify_all"]
