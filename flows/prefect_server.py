"""`python -m flows.prefect_server PORT [--with-parent]`: the Prefect server on loopback, with immediate transactions.

Prefect opens an SQLite transaction by reading. If anyone else commits before it writes, SQLite refuses the write at
once ("database is locked"; waiting cannot help), the server answers 503, and the client sleeps 2 s before it tries
again. A transaction that says at its start that it will write waits a few milliseconds instead. Prefect does so for
state changes only; here every write does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

from flows.processes import HOST

_GRACE = 10.0


def create_app() -> Any:
    """The server's application."""
    from prefect.server.database.configurations import AioSqliteConfiguration

    deferred = AioSqliteConfiguration.begin_transaction

    def immediate(self: Any, session: Any, with_for_update: bool = False) -> AbstractAsyncContextManager[Any]:
        return deferred(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = immediate  # type: ignore[method-assign]
    from prefect.server.api.server import create_app

    return create_app()


def end_with_parent() -> None:
    """Ends this process when the parent closes our standard input, which it also does by dying in any way."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serves until a signal, or until the parent has gone."""
    if "--with-parent" in sys.argv:
        end_with_parent()
    import uvicorn

    uvicorn.run(
        create_app, factory=True, host=HOST, port=int(sys.argv[1]), log_level="error", timeout_graceful_shutdown=5
    )


if __name__ == "__main__":
    main()
