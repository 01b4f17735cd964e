"""The helper process: imports a function once, then forks a child to run it, and forks anew when a child dies.

A task that takes too long is stopped thrice over. The kernel kills the child by CPU time or by the clock: two alarms
with their default action are set before each task, so that one which holds the interpreter ends as well. A task may
cancel or catch these; then the server kills the child, and what it started, soon after. Last, a child does not outlive
the server, nor the server the program (Linux).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from components.workers.confine import confine, die_with_parent

GRACE_SECONDS = 0.5  # beyond the time limit, which the alarms of a child keep unless the task undoes them
REPLY_BYTES = 1 << 20  # the longest reply that is read
RECURSION = 100_000  # frames: what is nested deeply then ends, runs out of time, or dies; no library can swallow it


def serve(parent: Connection, function: Callable[[Any], Any], options: dict[str, Any]) -> None:
    """Answers tasks until the other side closes."""
    parent.send_bytes(json.dumps({"pid": os.getpid()}).encode())
    pid, child = _fork(function, options, parent)
    clock, cpu = f"stopped after {options['timeout']:g} s", f"stopped after {options['cpu']:g} s of CPU time"
    late = {-signal.SIGALRM: clock, -signal.SIGPROF: cpu}
    while True:
        try:
            task = parent.recv_bytes()
            in_time = _send(child, task, parent, options["timeout"] + GRACE_SECONDS)
        except (EOFError, OSError):
            _kill(pid)
            return
        reply = _receive(child) if in_time else None
        if reply is None or options["hostile"]:
            died_of = _kill(pid)
            child.close()
            if reply is None:
                value = late.get(died_of, f"the process died ({died_of})") if in_time else clock
                reply = {"status": "timeout" if value in late.values() else "error", "value": value}
            parent.send_bytes(json.dumps(reply).encode())
            task, reply = b"", None  # a hostile child must not find its predecessor's in the frames that it inherits
            pid, child = _fork(function, options, parent)
        else:
            parent.send_bytes(json.dumps(reply).encode())


def _send(child: Connection, task: bytes, parent: Connection, seconds: float) -> bool:
    """Whether the child answers, or ends, in time.

    Raises:
        EOFError: if the program is gone.
    """
    with suppress(OSError):  # it ended
        child.send_bytes(task)
    ready = wait([child, parent], seconds)
    if parent in ready:  # nothing else is sent while an answer is due
        raise EOFError
    return bool(ready)


def _receive(child: Connection) -> dict[str, Any] | None:
    """The child's reply; None where it died or wrote something else."""
    try:
        reply = json.loads(child.recv_bytes(REPLY_BYTES))
    except (EOFError, OSError, ValueError, RecursionError):
        return None
    return {"status": str(reply["status"]), "value": reply["value"]} if _is_reply(reply) else None


def _kill(pid: int) -> int:
    """Kills a child, where it lives, and what it started; how it ended, as `subprocess` says it."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _is_reply(reply: Any) -> bool:
    return isinstance(reply, dict) and reply.get("status") in ("ok", "error") and "value" in reply


def _fork(function: Callable[[Any], Any], options: dict[str, Any], parent: Connection) -> tuple[int, Connection]:
    ours, theirs = Pipe()
    if pid := os.fork():
        theirs.close()
        return pid, ours
    try:
        ours.close()
        parent.close()
        _work(theirs, function, **options)
    finally:
        os._exit(1)


def _work(
    server: Connection, function: Callable[[Any], Any], timeout: float, cpu: float, memory: int, hostile: bool
) -> NoReturn:
    """The child: runs tasks until the server closes, or one task only where it is hostile."""
    os.setpgid(0, 0)  # a group of its own, so that what a task starts can be killed with it
    die_with_parent()
    alarms = ((signal.ITIMER_REAL, timeout), (signal.ITIMER_PROF, cpu))
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # where a lower one stands already, or the system has none
            resource.setrlimit(limit, (value, value))
    sys.setrecursionlimit(1000 if hostile else RECURSION)
    while True:
        task = server.recv_bytes()
        for caught in (signal.SIGALRM, signal.SIGPROF):  # by an earlier task
            signal.signal(caught, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM, signal.SIGPROF))
        for alarm, seconds in alarms:
            signal.setitimer(alarm, seconds)
        if hostile:
            confine()
        try:
            reply = {"status": "ok", "value": function(json.loads(task))}
        except BaseException as error:  # it concerns this task alone
            reply = {"status": "error", "value": f"{type(error).__name__}: {error}"[:1000]}
        if not hostile:
            for alarm, _ in alarms:
                signal.setitimer(alarm, 0)
        server.send_bytes(json.dumps(reply).encode())


def main() -> None:
    target, descriptors, options = json.loads(sys.argv[1])
    connections = [Connection(descriptor) for descriptor in descriptors]
    try:
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
    except BaseException as error:
        for connection in connections:
            connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    gc.collect()
    gc.freeze()  # collections in a child then leave the shared memory alone
    for connection in connections:
        if os.fork() == 0:
            for other in connections:
                if other is not connection:
                    other.close()
            serve(connection, function, options)
            os._exit(0)
    for connection in connections:
        connection.close()
    for _ in connections:
        os.wait()


if __name__ == "__main__":
    main()
