"""Verifiers: terminal rewards."""

from components.verifiers.base import Outcome, Verifier, verify
from components.verifiers.exact_match import ExactMatch

VERIFIERS: dict[str, type[Verifier]] = {"multihop": ExactMatch}

__all__ = ["VERIFIERS", "Outcome", "Verifier", "verify"]
