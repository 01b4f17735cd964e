"""Processes that outlive the command that started them: start, recognise, wait for, and end exactly these.

A process is known by its id *and* the time it was created, so an id that the system has since given to another program
is never signalled. Everything binds to loopback.
"""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from components.errors import UserError

HOST = "127.0.0.1"
_SAME_PROCESS_SECONDS = 2.0  # the system derives a creation time from the clock, which may be set in between


class ServiceError(UserError):
    """A service that cannot start or does not answer; the message may carry the last lines of its log."""


@dataclass(frozen=True)
class Service:
    """One background process, as it is recorded on disk.

    Attributes:
        name: What it is called in messages and logs.
        pid: Its process id.
        created: When it was created, in seconds since the epoch.
        port: The port it listens on, 0 for none.
        log: Where its output goes.
    """

    name: str
    pid: int
    created: float
    port: int
    log: str

    @property
    def url(self) -> str:
        """The address of its web page."""
        return f"http://{HOST}:{self.port}"

    def process(self) -> psutil.Process | None:
        """The live process, or None if it has ended (even if another program has its id now)."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _SAME_PROCESS_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_in_use(port: int) -> bool:
    """Whether a server already holds the port on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def popen(
    name: str,
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    port: int = 0,
    stdin: int = subprocess.DEVNULL,
) -> tuple[subprocess.Popen[bytes], Service]:
    """Start a process in a session of its own (Ctrl-C here does not reach it), its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(command), env=dict(env), cwd=cwd, stdin=stdin, stdout=output, stderr=output, start_new_session=True
        )
    return child, Service(name, child.pid, psutil.Process(child.pid).create_time(), port, str(log))


def answers(url: str, timeout: float = 2.0) -> bool:
    """Whether a GET of the url succeeds."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def wait_until(ready: Callable[[], bool], what: str, service: Service, timeout: float = 180.0) -> None:
    """Wait until `ready`, and fail at once if the service dies in the meantime.

    Raises:
        ServiceError: The service ended, or was not ready in time; with the last lines of its log.
    """
    deadline = time.monotonic() + timeout
    while not ready():
        if service.process() is None:
            raise ServiceError(f"{what} ended while starting{log_tail(service.log)}")
        if time.monotonic() > deadline:
            raise ServiceError(f"{what} was not ready after {timeout:.0f} s{log_tail(service.log)}")
        time.sleep(0.1)


def log_tail(log: str | Path, lines: int = 12) -> str:
    """The end of a log file, as the end of an error message that names the file."""
    try:
        text = Path(log).read_text(errors="replace")
    except OSError:
        text = ""
    kept = [line for line in text.splitlines() if line.strip()][-lines:]
    return f"; the end of {log}:\n" + "\n".join(f"  {line}" for line in kept) if kept else f"; its log {log} is empty"


def end(services: Iterable[Service], grace: float = 15.0) -> list[Service]:
    """End these services and everything they started: SIGTERM, a time to finish, then SIGKILL.

    Returns:
        The services that were alive.
    """
    ended: list[Service] = []
    tree: list[psutil.Process] = []
    for service in services:
        if (process := service.process()) is not None:
            ended.append(service)
            try:
                tree += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
    for signal_all, timeout in ((psutil.Process.terminate, grace), (psutil.Process.kill, 5.0)):
        for process in tree:
            try:
                signal_all(process)  # psutil checks the creation time again before it signals
            except psutil.NoSuchProcess:
                continue
        tree = psutil.wait_procs(tree, timeout=timeout)[1]
    return ended
