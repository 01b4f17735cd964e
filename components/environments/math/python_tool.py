"""The Python tool: runs code that a model wrote, and says what it printed.

Each run starts afresh: code sees nothing of earlier turns, so a rollout's state stays a value and branching right.
Two tools have the same interface:

- `SandboxedPython`: the interpreter of the package pydantic-monty, which has no files, network or processes to give. It
  runs a subset of Python with a few standard modules, a call in a fraction of a millisecond.
- `ConfinedPython`: CPython with sympy and numpy, in a new process for each run, which the kernel lets only compute
  (Linux).

Code that fails, runs too long or kills its interpreter is the policy's affair: the output says so. What is raised is
only that a tool cannot be started.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from components.errors import MissingExtraError, UserError
from components.tree.schema import Status
from components.workers.confine import available
from components.workers.pool import PerProcess, Workers

if TYPE_CHECKING:
    from pydantic_monty import Monty

OUTPUT_CHARS = 10_000
CODE_CHARS = 100_000
MEMORY_BYTES = 128 << 20
_EXECUTE = "components.environments.math.run_python:execute"
_PRINT_BYTES = 2 * OUTPUT_CHARS  # counts more than the characters


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        output: What it printed, then its error where it failed; at most about `OUTPUT_CHARS` characters.
        status: `Status.OK`; `Status.ERROR` where the code raised or killed its interpreter; `Status.TIMEOUT`.
    """

    output: str
    status: Status


class PythonTool(Protocol):
    """Runs code; usable from any thread."""

    def run(self, code: str) -> Result:
        """Runs code afresh. Never raises on what the code does."""


class SandboxedPython:
    """The sandboxed interpreter.

    Args:
        timeout: Seconds that one run may take.
        count: Runs at the same time.
    """

    def __init__(self, timeout: float = 2.0, count: int | None = None) -> None:
        if importlib.util.find_spec("pydantic_monty") is None:
            raise MissingExtraError("the Python tool 'sandboxed'", "math")
        self._monty = PerProcess(lambda: _start_monty(count or os.cpu_count() or 1, timeout))
        self._limits: Any = {
            "max_feed_duration_secs": timeout,
            "max_memory": MEMORY_BYTES,
            "max_recursion_depth": 500,
            "max_suspensions": 1000,
        }
        self.timeout = timeout

    def run(self, code: str) -> Result:
        from pydantic_monty import CollectString, MontyError

        if len(code) > CODE_CHARS:
            return _too_long(code)
        printed, error = CollectString(_PRINT_BYTES), None
        policy: Any = {"sleep": "zero", "random_start": {"seed": 0}}
        try:
            with self._monty.get().checkout(limits=self._limits, os_policy=policy) as session:
                session.feed_run(echo_last(code) + "\nNone", print_callback=printed)  # no value crosses: it may be huge
        except MontyError as raised:
            error = raised
        output = _cut(printed.output)
        if error is None:
            return Result(output, Status.OK)
        message = error.display("type-msg") if hasattr(error, "display") else f"the interpreter died: {error}"
        if getattr(error, "timed_out", False) or message.startswith("TimeoutError: feed time limit"):
            return Result(f"{output}TimeoutError: stopped after {self.timeout:g} s", Status.TIMEOUT)
        if message.endswith(f"> {_PRINT_BYTES} bytes"):
            message = f"OutputLimit: more than {OUTPUT_CHARS} characters of output"
        return Result(output + message[:2000], Status.ERROR)


class ConfinedPython:
    """CPython with sympy, in processes that can only compute.

    Args:
        timeout: Seconds of CPU time that one run may take; twice as many by the clock.
        count: Runs at the same time.

    Raises:
        UserError: where the system cannot confine a process.
    """

    def __init__(self, timeout: float = 5.0, count: int | None = None) -> None:
        if not available():
            raise UserError("the Python tool 'confined' needs Linux on x86-64 or arm64; use 'sandboxed'")
        self._workers = PerProcess(
            lambda: Workers(_EXECUTE, count or os.cpu_count() or 1, 2 * timeout, timeout, hostile=True)
        )

    def run(self, code: str) -> Result:
        if len(code) > CODE_CHARS:
            return _too_long(code)
        reply = self._workers.get().run(echo_last(code))
        if reply.status == Status.OK:
            status = Status.ERROR if reply.value["failed"] else Status.OK
            return Result(str(reply.value["output"]), status)
        return Result(f"{reply.status}: {reply.value}", reply.status)


def echo_last(code: str) -> str:
    """Makes code print its last line where that is an expression with a value, as an interactive session would."""
    head, _, last = code.rstrip().rpartition("\n")
    if len(last) > 1000 or last[:1].isspace() or head.endswith("\\"):
        return code
    try:
        compile(last, "", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    return f"{head}\n__value__ = ({last}\n)\nif __value__ is not None:\n    print(repr(__value__))"


# By the name that an environment is given.
PYTHON_TOOLS: dict[str, Callable[[], PythonTool]] = {"sandboxed": SandboxedPython, "confined": ConfinedPython}


def _start_monty(count: int, timeout: float) -> Monty:
    import atexit

    from pydantic_monty import Monty

    pool = Monty(max_processes=count, request_timeout=timeout + 1.0, feed_duration_limit_grace=0.5)
    pool.__enter__()
    owner = os.getpid()
    atexit.register(lambda: pool.__exit__(None, None, None) if os.getpid() == owner else None)
    return pool


def _cut(text: str) -> str:
    return text if len(text) <= OUTPUT_CHARS else text[:OUTPUT_CHARS] + f"\n[output cut at {OUTPUT_CHARS} characters]"


def _too_long(code: str) -> Result:
    return Result(f"the code has {len(code)} characters; at most {CODE_CHARS} are run", Status.ERROR)
