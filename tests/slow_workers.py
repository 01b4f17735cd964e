"""Preloaded by the workers of a cluster under test: a verifier and steps that take their time, or the worker's life."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from components.environments import ENVIRONMENTS
from components.environments.base import Prompt, Transition
from components.environments.multihop import MultiHop

JUDGED = "JUDGED"  # names the variable that names the file in which each case leaves a line


class Slow(MultiHop):
    """Judges as exact match does; the answer "poison" kills its process, "fault" fails."""

    def score(self, prompt: Prompt, answer: str | None) -> float:
        with Path(os.environ[JUDGED]).open("a") as stream:
            stream.write(f"{os.getpid()} {prompt.prompt_id}\n")
        time.sleep(0.02)
        if answer == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        if answer == "fault":
            raise ValueError("a fault of the verifier")
        return float(answer == prompt.answer)


class SlowSteps(Slow):
    """Steps as multihop does, after a while, and fails on some actions."""

    def step(self, state: object, action: str) -> Transition:
        time.sleep(0.01)
        if len(action) % 5 == 0:
            raise ConnectionError(f"no answer to {action!r}")
        return super().step(state, action)


def dask_setup(worker: object) -> None:
    ENVIRONMENTS._found["multihop"] = SlowSteps
