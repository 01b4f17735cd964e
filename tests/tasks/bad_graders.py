"""Graders that hang, leak memory or crash, run by the workers of a test."""

from __future__ import annotations

import os
import signal
import time


def grade(case: list[str]) -> bool:
    """Exact match on [gold, answer]; what else happens depends on the answer."""
    gold, answer = case
    fault = sum(answer.encode()) % 5
    if fault == 0:
        time.sleep(3600)
    if fault == 1:
        leak = []
        while True:
            leak.append(bytearray(1 << 24))
    if fault == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == 3:
        os._exit(0)
    return gold == answer
