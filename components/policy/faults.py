"""What engines, environments and processes of any make may hand back, and what becomes of it: data, never a crash."""

from __future__ import annotations

import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from components.environments.base import Transition
from components.policy.engines.base import Completion
from components.tree.schema import Node, Status, StopReason

# A line that names an exception, behind what vLLM (process, level, place) and torch (rank) write before it.
_ERROR = re.compile(
    r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception)(?:: .*)?)$", re.M
)


def checked(transition: Any) -> Transition:
    """What an environment returned; halves of surrogate pairs, which are no text, become U+FFFD.

    Raises:
        TypeError, ValueError: if it is no transition, or a field is not what `Transition` says.
    """
    if not isinstance(transition, Transition):
        raise TypeError(f"the environment returned a {type(transition).__name__}, not a Transition")
    for name in ("observation", "answer"):
        if not isinstance(value := getattr(transition, name), str | None):
            raise TypeError(f"the environment's {name} is a {type(value).__name__}, not a text")
    if transition.done:
        StopReason(transition.stop_reason)  # type: ignore[arg-type]
    if transition.role not in ("tool", "user"):
        raise ValueError(f"the environment's role is {transition.role!r}, neither 'tool' nor 'user'")
    return replace(transition, observation=text(transition.observation), answer=text(transition.answer))


def text(value: str | None) -> str | None:
    """The text with U+FFFD for every half of a surrogate pair, which cannot be written."""
    return None if value is None else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def copy_of(state: Any) -> Any:
    """A copy that equals the state; None where there is none to compare with."""
    with suppress(Exception):  # states may be of any kind
        if (copy := deepcopy(state)) == state:
            return copy
    return None


def fault_of(completion: Completion) -> Exception | None:
    """Why a completion can be neither trusted nor trained on."""
    if all(-inf < value <= 1e-3 for value in completion.logprobs):  # NaN fails both; rounding may leave one above 0
        return None
    return ValueError("the engine gave log-probabilities that are not finite, or above 0")


def failed(node: Node, error: Exception) -> Node:
    """The node as a leaf whose rollout has no reward, and is no wrong answer."""
    node.stop_reason = StopReason.TOOL_ERROR
    node.status = Status.TIMEOUT if isinstance(error, TimeoutError) else Status.ERROR
    node.error = text(f"{type(error).__name__}: {error}"[:2000])
    return node


def first_error(log: Path) -> str:
    """The first error that a process printed, which is the cause of those after it; or else its last line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = _ERROR.search(text)
    return (found[1] if found else next(iter(text.strip().splitlines()[-1:]), "its log is empty")).strip()
