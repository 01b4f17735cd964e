"""One writer among many machines: an object in the store that its owner renews.

The object is made only where there is none, which S3, memory and local folders do atomically. Its owner writes the
time into it every `BEAT_SECONDS`; a lease that was not renewed for `STALE_SECONDS` may be taken over, and so may one
whose process, on this very machine, has ended. What that cannot promise: clocks must agree to within a minute or two;
an owner that cannot reach the store for `STALE_SECONDS` loses its lease and learns so at its next renewal or push,
where it stops; a server that ignores `If-None-Match` may grant two at the same moment, of which one stops then.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from components.errors import UserError
from components.storage import write_text

BEAT_SECONDS = 30.0
STALE_SECONDS = 180.0
SETTLE_SECONDS = 0.5  # for two that take over the same stale lease

_held: set[str] = set()  # tokens of this process


class LostError(UserError):
    """The lease is another's by now."""


class Lease:
    """Holds a lease from `acquire` to `release`.

    Args:
        fs: An fsspec file system.
        path: The lease's object in it.
        what: What is leased, for messages.
    """

    def __init__(self, fs: Any, path: str, what: str) -> None:
        self.fs, self.path, self.what, self.token = fs, path, what, uuid4().hex
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def acquire(self) -> None:
        """Takes the lease.

        Raises:
            UserError: if another process holds it.
        """
        stale = False
        while not self._create():
            other = self._read()
            if other is not None and _is_alive(other):
                age = max(0.0, time.time() - other["time"])
                raise UserError(
                    f"{self.what} is being written on {other['host']} (process {other['pid']}, last sign {age:.0f} s "
                    f"ago); end it there, or wait {STALE_SECONDS:.0f} s after its last sign"
                )
            stale = True
            with suppress(FileNotFoundError):
                self.fs.rm_file(self.path)
        if stale:
            time.sleep(SETTLE_SECONDS)
        self.check()
        _held.add(self.token)
        self._thread.start()

    def check(self) -> None:
        """Raises a LostError if the lease is no longer this process's."""
        other = self._read()
        if other is None or other["token"] != self.token:
            by = f"taken over by {other['host']} (process {other['pid']})" if other else "ended"
            raise LostError(f"{self.what} was {by}; this process stops, so that two do not write it")

    def release(self) -> None:
        self._done.set()
        _held.discard(self.token)
        if self._thread.is_alive():
            self._thread.join()
        with suppress(Exception):  # a store that is away: the lease grows stale by itself
            self.check()
            self.fs.rm_file(self.path)

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            try:
                self.check()
                self._renew()
            except LostError:
                return  # the next push tells
            except Exception:  # every store has kinds of its own; it is away for now
                continue

    def _create(self) -> bool:
        """Makes the lease where there is none; whoever reads it finds it whole, as an object in a store is."""
        try:
            if not self._is_local:
                self.fs.pipe_file(self.path, self._payload(), mode="create")
                return True
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            written = Path(f"{self.path}.{self.token}")
            try:
                written.write_bytes(self._payload())
                os.link(written, self.path)
            finally:
                written.unlink(missing_ok=True)
        except FileExistsError:
            return False
        return True

    def _renew(self) -> None:
        if self._is_local:  # whose `pipe_file` empties the file before it writes
            write_text(Path(self.path), self._payload().decode())
        else:
            self.fs.pipe_file(self.path, self._payload())

    @property
    def _is_local(self) -> bool:
        return "file" in self.fs.protocol

    def _payload(self) -> bytes:
        me = psutil.Process()
        who = {"token": self.token, "host": socket.gethostname(), "place": place(), "pid": me.pid}
        return json.dumps(who | {"created": me.create_time(), "time": time.time()}).encode()

    def _read(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self.fs.cat_file(self.path)))
        except (FileNotFoundError, ValueError):
            return None


def place() -> str:
    """Names the set of processes among which an id means one process: host, boot, and namespace of ids."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _is_alive(other: dict[str, Any]) -> bool:
    if other["place"] == place():
        if other["pid"] == os.getpid():
            return other["token"] in _held  # else the store was away when it was given back
        try:
            return bool(abs(psutil.Process(other["pid"]).create_time() - other["created"]) < 2.0)
        except psutil.NoSuchProcess:
            return False
    return time.time() - float(other["time"]) < STALE_SECONDS
