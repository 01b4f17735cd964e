"""What a verifier is: a terminal reward, or a status that says why there is none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from components.environments.base import Prompt
from components.tree.schema import Status
from components.workers.pool import Workers


@dataclass(frozen=True)
class Outcome:
    """The verdict on one rollout.

    Attributes:
        reward: 0 or 1; None where no verdict could be reached, which is never a 0.
        status: `Status.OK`, or why there is no reward.
        seconds: Wall time of the verification.
        detail: The error's text, where there was one.
    """

    reward: float | None
    status: str
    seconds: float
    detail: str | None = None


class Verifier(Protocol):
    """Scores the final answer of a rollout; raises on its own failures, which `verify` turns into a status.

    `TimeoutError` is a status of its own. One that judges in processes of its own names in an attribute `parallel` how
    many answers it can judge at the same time, from as many threads.
    """

    def score(self, prompt: Prompt, answer: str | None) -> float:
        """The reward of an answer; `answer` is None where the rollout ended without one."""


class VerificationError(RuntimeError):
    """The verifier failed on an answer: there is no verdict."""


def ask(workers: Workers, task: Any) -> float:
    """The reward that a worker process finds: one that hangs, leaks or dies is killed, and is no wrong answer.

    Raises:
        TimeoutError: if it took too long.
        VerificationError: if it failed or died.
    """
    reply = workers.run(task)
    if reply.status == Status.TIMEOUT:
        raise TimeoutError(reply.value)
    if reply.status != Status.OK:
        raise VerificationError(reply.value)
    return float(reply.value)


def verify(verifier: Verifier, prompt: Prompt, answer: str | None) -> Outcome:
    """Runs a verifier so that a failure of its own is a status, never a wrong answer."""
    start = time.perf_counter()
    try:
        reward = float(verifier.score(prompt, answer))
    except TimeoutError as error:
        return Outcome(None, Status.TIMEOUT, time.perf_counter() - start, f"TimeoutError: {error}")
    except Exception as error:  # whatever a verifier raises concerns this one rollout
        return Outcome(None, Status.ERROR, time.perf_counter() - start, f"{type(error).__name__}: {error}")
    if not 0.0 <= reward <= 1.0:  # NaN fails this comparison as well
        return Outcome(None, Status.ERROR, time.perf_counter() - start, f"reward {reward} lies outside [0, 1]")
    return Outcome(reward, Status.OK, time.perf_counter() - start)


def verify_all(verifier: Verifier, cases: Sequence[tuple[Prompt, str | None]]) -> list[Outcome]:
    """The outcomes of many rollouts, in their order, as many at a time as the verifier can judge."""
    parallel = getattr(verifier, "parallel", 1)
    if parallel == 1:
        return [verify(verifier, *case) for case in cases]
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(lambda case: verify(verifier, *case), cases))
