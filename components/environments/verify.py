"""Verifying: the reward of a rollout's answer, or a status that says why there is none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from components.environments.base import Environment, Prompt
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


class VerificationError(RuntimeError):
    """The verifier failed on an answer: there is no verdict."""


def score_in_worker(workers: Workers, task: Any) -> float:
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


def verify(environment: Environment, prompt: Prompt, answer: str | None) -> Outcome:
    """Scores an answer so that a failure of its own is a status, never a wrong answer."""
    start = time.perf_counter()
    try:
        reward = float(environment.score(prompt, answer))
    except TimeoutError as error:
        return Outcome(None, Status.TIMEOUT, time.perf_counter() - start, f"TimeoutError: {error}")
    except Exception as error:  # whatever a verifier raises concerns this one rollout
        return Outcome(None, Status.ERROR, time.perf_counter() - start, f"{type(error).__name__}: {error}")
    if not 0.0 <= reward <= 1.0:  # NaN fails this comparison as well
        return Outcome(None, Status.ERROR, time.perf_counter() - start, f"reward {reward} lies outside [0, 1]")
    return Outcome(reward, Status.OK, time.perf_counter() - start)


def verify_all(environment: Environment, cases: Sequence[tuple[Prompt, str | None]]) -> list[Outcome]:
    """The outcomes of many rollouts, in their order, as many at a time as the environment can score."""
    if environment.parallel_scores == 1:
        return [verify(environment, *case) for case in cases]
    with ThreadPoolExecutor(environment.parallel_scores) as pool:
        return list(pool.map(lambda case: verify(environment, *case), cases))
