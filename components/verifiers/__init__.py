"""Verifiers: terminal rewards, by the environment that they judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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

__all__ = ["VERIFIERS", "Outcome", "Verifier", "verify", "verify_all"]
