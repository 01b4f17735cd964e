"""The helper process: imports a function once, then forks a child to run it, and forks anew when a child dies.

The kernel kills a child that takes too long, by CPU time or by the clock: two alarms with their default action are set
before each task, so a task that holds the interpreter, or sleeps, or was left behind by a killed parent ends as well.
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
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from components.workers.confine import confine

REPLY_BYTES = 1 << 20  # the longest reply that is read
RECURSION = 100_000  # frames: what is nested deeply then ends, runs out of time, or dies; no library can swallow it


def serve(parent: Connection, function: Callable[[Any], Any], options: dict[str, Any]) -> None:
    """Answers tasks until the other side closes."""
    parent.send_bytes(json.dumps({"pid": os.getpid()}).encode())
    pid, child = _fork(function, options, parent)
    while True:
        try:
            task = parent.recv_bytes()
        except (EOFError, OSError):
            os.kill(pid, signal.SIGKILL)
            return
        reply = _ask(child, task)
        if reply is None or options["hostile"]:
            os.kill(pid, signal.SIGKILL)  # does nothing to one that is dead already
            died_of = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            child.close()
            if reply is None:
                cpu = f"{options['cpu']:g} s of CPU time"
                late = {-signal.SIGALRM: f"{options['timeout']:g} s", -signal.SIGPROF: cpu}
                value = f"stopped after {late[died_of]}" if died_of in late else f"the process died ({died_of})"
                reply = {"status": "timeout" if died_of in late else "error", "value": value}
            parent.send_bytes(json.dumps(reply).encode())
            task, reply = b"", None  # a hostile child must not find its predecessor's in the frames that it inherits
            pid, child = _fork(function, options, parent)
        else:
            parent.send_bytes(json.dumps(reply).encode())


def _ask(child: Connection, task: bytes) -> dict[str, Any] | None:
    """The child's reply; None where it died or wrote something else."""
    try:
        child.send_bytes(task)
        reply = json.loads(child.recv_bytes(REPLY_BYTES))
    except (EOFError, OSError, ValueError, RecursionError):
        return None
    return {"status": str(reply["status"]), "value": reply["value"]} if _is_reply(reply) else None


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
    alarms = ((signal.ITIMER_REAL, timeout), (signal.ITIMER_PROF, cpu))
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # where a lower one stands already, or the system has none
            resource.setrlimit(limit, (value, value))
    sys.setrecursionlimit(1000 if hostile else RECURSION)
    while True:
        task = server.recv_bytes()
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
