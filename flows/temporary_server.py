"""The Prefect API of one command: the user's server, that of `trace up`, or a real server that ends with the command.

Entering `TemporaryAPI` only starts the server (6 s; 12 s on the first day, when the database is made), so that other
work can go on meanwhile; `wait` blocks until it answers. Enter it before Prefect is imported: Prefect reads
PREFECT_API_URL at import. A server that is killed later is started again on the same database; Prefect's client
repeats its requests for a minute.

Prefect's own ephemeral server is not used: it prints tracebacks at exit, and gives up when it takes long to start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from components.errors import UserError
from flows.processes import HOST, Service, ServiceError, answers, end, free_port, popen, wait_until

_GRACE = 10.0

logger = logging.getLogger(__name__)


class ServerLost(ServiceError):
    """The Prefect server failed in the middle of a run."""


class TemporaryAPI:
    """A context manager: `with TemporaryAPI(...) as api: ...; url = api.wait()`."""

    def __init__(self, root: Path, env: dict[str, str], log: Path, url: str | None) -> None:
        """Prepares.

        Args:
            root: The project's folder.
            env: Environment of the server, if one is started.
            log: Where its output goes.
            url: An API to use instead of a server of our own.
        """
        self._root, self._env, self._log = root, env, log
        self._given = url
        self._port = 0 if url else free_port()
        self.url = url or f"http://{HOST}:{self._port}/api"
        self._process: subprocess.Popen[bytes] | None = None
        self._service: Service | None = None
        self._lock, self._closing = threading.Lock(), False
        self._previous = os.environ.get("PREFECT_API_URL")

    def __enter__(self) -> TemporaryAPI:
        if not self._given:
            self._start()
        os.environ["PREFECT_API_URL"] = self.url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _uninterrupted():
            _drain_client()
            with self._lock:
                self._closing = True
            if self._process is not None and self._service is not None:
                end([self._service], _GRACE)
                self._process.wait()
                if self._process.stdin:
                    self._process.stdin.close()
                if self._log.exists() and not self._log.stat().st_size:
                    self._log.unlink()
        if self._previous is None:
            os.environ.pop("PREFECT_API_URL", None)
        else:
            os.environ["PREFECT_API_URL"] = self._previous

    def wait(self) -> str:
        """Block until the API answers; returns its url.

        Raises:
            ServiceError: It does not answer, or the server ended while starting.
        """
        health = f"{self.url}/health"
        if self._given:
            if not any(answers(health) for _ in range(3)):
                raise ServiceError(
                    f"the Prefect API at {self.url} does not answer; start that server, or unset PREFECT_API_URL"
                )
            return self.url
        assert self._service is not None, "enter the context first"
        try:
            wait_until(lambda: answers(health), "the temporary Prefect server", self._service)
        except ServiceError:
            if self._service.process() is not None:
                raise
            self._start()  # two commands that make the same new database at once: the second one finds it made
            wait_until(lambda: answers(health), "the temporary Prefect server", self._service)
        threading.Thread(target=self._keep_up, name="prefect-server", daemon=True).start()
        return self.url

    def _keep_up(self) -> None:
        """Starts the server again when it ends by itself; gives up where it ends while it starts."""
        while self._process is not None and self._service is not None:
            self._process.wait()
            with self._lock:
                if self._closing:
                    return
                logger.warning("the temporary Prefect server was killed; it is started again")
                self._start()
            try:
                wait_until(lambda: answers(f"{self.url}/health"), "the temporary Prefect server", self._service)
            except ServiceError as error:
                logger.warning("%s", error)
                return

    def is_to_blame(self, error: Exception) -> bool:
        """Whether an error of a flow is the server's: it does not answer any more, or did not in time."""
        from httpx import HTTPError

        return not isinstance(error, UserError) and (isinstance(error, HTTPError) or not answers(f"{self.url}/health"))

    def _start(self) -> None:
        command = [sys.executable, "-m", "flows.temporary_server", str(self._port)]
        env = self._env | {"PREFECT_API_URL": self.url}
        self._process, self._service = popen(
            "Prefect", command, env, self._root, self._log, self._port, stdin=subprocess.PIPE
        )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds back Ctrl-C: an impatient second one must not leave a half-stopped server and a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _drain_client() -> None:
    """Sends what Prefect still holds in this process; at interpreter exit it would find no server and say so."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    EventsWorker.drain_all(timeout=5)
    APILogWorker.drain_all(timeout=5)


def _serve(port: int) -> None:
    """Serves the Prefect API until the parent closes our standard input, which it also does by dying in any way."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host=HOST,
        port=port,
        log_level="error",
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
