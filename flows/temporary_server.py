"""The Prefect API of one command: the user's server, that of `trace up`, or a server that ends with the command.

Prefect's own temporary server is not used: it stays for ever when its command is killed, and Ctrl-C in a terminal
ends it at once, whereupon the command asks it in vain and ends 75 s later (measured with Prefect 3.9.1).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from components.errors import UserError
from flows import services
from flows.services import HOST, Service, ServiceError, answers

_GRACE = 10.0  # seconds that a server has to end

logger = logging.getLogger(__name__)


class ServerLost(ServiceError):
    """The Prefect server failed in the middle of a run."""


@contextlib.contextmanager
def prefect_api(root: Path) -> Iterator[PrefectAPI]:
    """Sets PREFECT_API_URL for the block; Prefect reads it at import, so import it inside. For the main thread.

    The URL is the user's if set, else that of `trace up`, else that of a server which starts meanwhile (6 s; 12 s when
    there is no database yet): `wait` blocks until it answers.
    """
    given, prefect = os.environ.get("PREFECT_API_URL"), services.running(root).get("Prefect")
    api = PrefectAPI(root.resolve(), given or (f"{prefect.url}/api" if prefect else None))
    os.environ["PREFECT_API_URL"] = api.url
    try:
        yield api
    finally:
        # An impatient second Ctrl-C must not leave a half-stopped server and a traceback.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        if "prefect" in sys.modules:
            # Send what Prefect still holds in this process; at interpreter exit it would find no server and say so.
            from prefect.events.worker import EventsWorker
            from prefect.logging.handlers import APILogWorker

            EventsWorker.drain_all(timeout=5)
            APILogWorker.drain_all(timeout=5)
        api.close()
        if not given:
            del os.environ["PREFECT_API_URL"]
        signal.signal(signal.SIGINT, interrupt)


class PrefectAPI:
    """An API at `url`: the given one, or that of a server of our own, which is started again if it is killed."""

    def __init__(self, root: Path, given: str | None) -> None:
        """Starts a server, without waiting for it, unless a URL is given."""
        self._root, self._port = root, 0 if given else services.free_port()
        self.url = given or f"http://{HOST}:{self._port}/api"
        self._lock, self._closing = threading.Lock(), False
        self._server = None if given else self._start()

    def wait(self) -> None:
        """Block until the API answers.

        Raises:
            ServiceError: It does not answer, or the server ended while starting.
        """
        if self._server is None:
            if not any(answers(f"{self.url}/health") for _ in range(3)):
                raise ServiceError(
                    f"the Prefect API at {self.url} does not answer; start that server, or unset PREFECT_API_URL"
                )
            return
        try:
            services.wait_for(f"{self.url}/health", self._server)
        except ServiceError:
            if self._server.process() is not None:
                raise
            self._server = self._start()  # of two commands that make one new database, the second now finds it made
            services.wait_for(f"{self.url}/health", self._server)
        threading.Thread(target=self._keep_up, name="prefect-server", daemon=True).start()

    def is_to_blame(self, error: Exception) -> bool:
        """Whether an error of a flow is the server's: it does not answer any more, or did not in time."""
        from httpx import HTTPError

        return not isinstance(error, UserError) and (isinstance(error, HTTPError) or not answers(f"{self.url}/health"))

    def close(self) -> None:
        """End the server; its log stays if there is anything in it."""
        with self._lock:
            self._closing = True
        if self._server is not None:
            services.end(self._server, _GRACE)
            if (log := Path(self._server.log)).exists() and not log.stat().st_size:
                log.unlink()

    def _start(self) -> Service:
        command = [sys.executable, "-m", "flows.temporary_server", str(self._port), str(os.getpid())]
        env = services.server_environment(self._root) | {"PREFECT_API_URL": self.url}
        log = services.home(self._root) / "logs" / f"prefect-{os.getpid()}.log"
        return services.launch("the temporary Prefect server", command, env, self._root, log, self._port)

    def _keep_up(self) -> None:
        """Starts the server again when it ends by itself, on the same database; Prefect's client asks for a minute.

        Gives up where it ends while it starts.
        """
        while self._server is not None:
            if process := self._server.process():
                process.wait()
            with self._lock:
                if self._closing:
                    return
                logger.warning("the temporary Prefect server was killed; it is started again")
                self._server = self._start()
            try:
                services.wait_for(f"{self.url}/health", self._server)
            except ServiceError as error:
                if not self._closing:
                    logger.warning("%s", error)
                return


def _serve(port: int, parent: int) -> None:
    """Serves the Prefect API until the parent process ends, in whatever way."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    import uvicorn

    app = "prefect.server.api.server:create_app"
    uvicorn.run(app, factory=True, host=HOST, port=port, log_level="error", timeout_graceful_shutdown=5)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
