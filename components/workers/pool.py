"""The caller's side: a pool of workers that are killed and replaced when they take too long."""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from components.tree.schema import Status

START_SECONDS = 120.0  # for the helper's imports
GRACE_SECONDS = 3.0  # beyond the time limit, which the worker keeps itself
TASK_BYTES = 1 << 24

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """What became of one task.

    Attributes:
        status: `Status.OK`; `Status.TIMEOUT` where it was killed; `Status.ERROR` where it raised, or its process died.
        value: What the function returned (JSON), or the reason why there is nothing.
    """

    status: Status
    value: Any


class PerProcess(Generic[T]):
    """Makes a thing when it is first asked for, once in each process: a fork must not use its parent's pipes."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock, self._made = make, threading.Lock(), dict[int, T]()

    def get(self) -> T:
        with self._lock:
            if os.getpid() not in self._made:
                self._made[os.getpid()] = self._make()
            return self._made[os.getpid()]


@dataclass
class _Worker:
    connection: Connection
    pid: int | None = None  # known once it has said that it is ready
    fault: str | None = None  # why it can never be


class Workers:
    """Runs a function in other processes; usable from any thread.

    Args:
        function: ``"module:name"`` of a function of one JSON value that returns one.
        count: Tasks that run at the same time.
        timeout: Seconds by the clock that one task may take.
        cpu: Seconds of CPU time that one task may take, `timeout` by default. If less, what never ends is stopped as
            soon, but not what merely runs on a busy machine.
        hostile: Whether tasks may attack: each then gets a new process, which can do nothing but compute.
        memory: Bytes of address space that one task may use.
    """

    def __init__(
        self,
        function: str,
        count: int = 1,
        timeout: float = 1.0,
        cpu: float | None = None,
        hostile: bool = False,
        memory: int = 1 << 30,
    ) -> None:
        self.function, self.count, self.timeout = function, count, timeout
        self._options = {"timeout": timeout, "cpu": cpu or timeout, "memory": memory, "hostile": hostile}
        self._lock = threading.Lock()
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._owner, self._closed = os.getpid(), False
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._start(count):
            self._idle.put(worker)
        atexit.register(self.close)

    def run(self, task: Any) -> Reply:
        """Runs one task; waits while all workers are busy.

        Raises:
            RuntimeError: if the function cannot be imported, or the pool is closed.
        """
        data = json.dumps(task).encode()
        if len(data) > TASK_BYTES:
            return Reply(Status.ERROR, f"a task of {len(data)} bytes; at most {TASK_BYTES} are taken")
        worker = self._idle.get()
        try:
            self._await_ready(worker)
            worker.connection.send_bytes(data)
            if not worker.connection.poll(self.timeout + GRACE_SECONDS):
                raise OSError("it does not answer")
            reply = json.loads(worker.connection.recv_bytes())
            return Reply(Status(reply["status"]), reply["value"])
        except (OSError, EOFError) as error:
            self._kill(worker)
            if not self._closed:
                worker = self._start(1)[0]
            return Reply(Status.ERROR, f"a worker was lost: {error or 'it ended'}")
        finally:
            self._idle.put(worker)

    def map(self, tasks: Iterable[Any]) -> list[Reply]:
        """Runs many tasks, `count` at a time; replies in the order of the tasks."""
        with ThreadPoolExecutor(self.count) as threads:
            return list(threads.map(self.run, tasks))

    def close(self) -> None:
        """Kills every worker, busy or not; further tasks raise. Runs by itself when the program ends."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return  # a fork of the owner must not end the owner's workers
        self._closed = True
        for helper in self._helpers:
            if helper.poll() is None:
                os.killpg(helper.pid, signal.SIGKILL)
            helper.wait()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, count: int) -> list[_Worker]:
        pairs = [Pipe() for _ in range(count)]
        descriptors = [theirs.fileno() for _, theirs in pairs]
        environment = {  # nothing secret, and the same output in every run
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "PYTHONHASHSEED": "0",
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        arguments = json.dumps([self.function, descriptors, self._options])
        helper = subprocess.Popen(
            [sys.executable, "-m", "components.workers.server", arguments],
            pass_fds=descriptors,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # one signal reaches it with all that it forked, and Ctrl-C does not
        )
        with self._lock:
            self._helpers = [one for one in self._helpers if one.poll() is None] + [helper]
        for _, theirs in pairs:
            theirs.close()
        return [_Worker(ours) for ours, _ in pairs]

    def _await_ready(self, worker: _Worker) -> None:
        if self._closed:
            raise RuntimeError("these workers are closed")
        if worker.pid is None and worker.fault is None:
            if not worker.connection.poll(START_SECONDS):
                raise OSError(f"it did not start within {START_SECONDS:g} s")
            ready = json.loads(worker.connection.recv_bytes())
            worker.pid, worker.fault = ready.get("pid"), ready.get("error")
        if worker.fault is not None:
            raise RuntimeError(f"a worker cannot run {self.function}: {worker.fault}")

    def _kill(self, worker: _Worker) -> None:
        worker.connection.close()
        if worker.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
