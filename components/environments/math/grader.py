"""Mathematical equality: the answer is worth the gold answer, whatever its form (`docs/rewards.md`).

Equal texts and whole numbers are judged at once. All else goes to `equality`, in worker processes: a comparison that
hangs is killed and raises `TimeoutError`, one that fails raises `VerificationError`; neither is a 0.
"""

from __future__ import annotations

import importlib.util
import os
import re
from decimal import Decimal

from components.environments.math.boxed import last_boxed
from components.environments.verify import score_in_worker
from components.errors import MissingExtraError
from components.workers.pool import PerProcess, Workers

CPU_SECONDS = 1.0  # answers take milliseconds, integrals a third of this; a hung one delays its neighbours no longer
TIMEOUT_SECONDS = 10.0  # by the clock, for a busy machine
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)


def reward(gold: str, answer: str | None) -> float:
    """1 where the answer (its last box, if it has one) equals the gold answer, else 0; no answer is a wrong answer.

    Usable from any thread; one pool of workers, with one process per CPU, serves all.

    Raises:
        MissingExtraError: if the package math-verify is not installed.
        TimeoutError: if the comparison took `CPU_SECONDS` or `TIMEOUT_SECONDS`.
        VerificationError: if it failed.
    """
    if answer is None or not answer.strip():
        return 0.0
    answer = last_boxed(answer) or answer
    if (verdict := _at_once(gold, answer)) is not None:
        return float(verdict)
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtraError("the verifier of mathematical answers", "math")
    return score_in_worker(_workers.get(), [gold, answer])


def _at_once(gold: str, answer: str) -> bool | None:
    """The verdict on equal texts and on two whole numbers; None where it takes more."""
    gold, answer = gold.strip(), answer.strip()
    if gold == answer:
        return True
    if _WHOLE.fullmatch(gold) and _WHOLE.fullmatch(answer):
        return Decimal(gold) == Decimal(answer)  # which is linear in their length
    return None


_GRADE = "components.environments.math.grade_math:grade"
_workers = PerProcess(lambda: Workers(_GRADE, os.cpu_count() or 1, TIMEOUT_SECONDS, CPU_SECONDS))
