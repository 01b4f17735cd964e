"""The local services, all on loopback: a Prefect server, an MLflow server, and a worker for the deployment.

`trace up` starts them and `trace down` ends exactly these. `trace train` needs none of them: it uses what is running,
or does without (`mlflow_uri`, and `prefect_api` in `temporary_server.py`). Either way everything lies in
`<root>/.trace`, so that a run made without servers is there when they are started later.

Prefect and MLflow read their settings when they are imported, so nothing here imports them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from components.errors import UserError

HOST = "127.0.0.1"
POOL = "local"
NAMES = ("Prefect", "MLflow", "worker")  # in the order in which they start
_SAME_PROCESS_SECONDS = 2.0  # the system derives a creation time from the clock, which may be set in between


class ServiceError(UserError):
    """A service that cannot start or does not answer; the message may carry the last lines of its log."""


@dataclass(frozen=True)
class Service:
    """One background process, as it is recorded on disk.

    Attributes:
        name: What it is called in messages.
        pid: Its process id.
        created: When it was created, in seconds since the epoch; the system may give its id to another program later.
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


def environment(root: Path) -> dict[str, str]:
    """The settings of every process of the project; what the user has set already stays.

    The times are of a subflow with nine empty tasks on two cores: 1.16 s by default, 0.2 s with these settings and
    `flows.heartbeat_frequency` None. (A flow's end waits for its heartbeat thread to wake, up to 1 s; no environment
    variable can turn that off, so a flow does, by `prefect.settings.temporary_settings` around its subflows.)
    """
    settings = {
        # Everything in one folder, and no call leaves the machine.
        "PREFECT_HOME": str(home(root) / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # The server records every task event in a transaction of its own. A request that meets one of them is refused
        # ("database is locked", status 503) and the client sleeps 2 s before it asks again: without heartbeats this
        # befell every subflow (2.2 s each); with these batches one in 60, and none of 40 that worked for 1.8 s each.
        # The price: the interface shows a task up to 3 s, a log line up to 4 s, an event up to 20 s late.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "500",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "3",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "1000",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "20",
        "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "4",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "trace",  # the run's own lines, beside Prefect's
        # A request for a token at every new connection, refused by a server that wants none (5 ms a subflow).
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false",
        # A scheduled run starts after 1 s on average instead of 5 s.
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        # One server process instead of about fifteen.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    if "MLFLOW_TRACKING_URI" not in os.environ:
        # Read by MLflow when it opens the database itself: the same artefact folder as the server's.
        settings["_MLFLOW_SERVER_ARTIFACT_ROOT"] = _artifacts(root)
    chosen = {key: os.environ.get(key, value) for key, value in settings.items()}
    for name in ("NO_PROXY", "no_proxy"):  # a proxy for the outside must not stand before servers on this machine
        known = [host for host in os.environ.get(name, "").split(",") if host]
        chosen[name] = ",".join(dict.fromkeys([*known, HOST, "localhost"]))
    return chosen


def server_environment(root: Path) -> dict[str, str]:
    """Environment of a server. Its calls to other machines (a list of Prefect's integrations) fail at once."""
    env = dict(os.environ) | environment(root)
    for kind in ("http_proxy", "https_proxy", "all_proxy"):
        env[kind] = env[kind.upper()] = f"http://{HOST}:9"
    env["no_proxy"] = env["NO_PROXY"] = f"{HOST},localhost"
    Path(env["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    return env


def up(root: Path, prefect_port: int = 4200, mlflow_port: int = 5000, say: Callable[[str], None] = print) -> None:
    """Start both servers, the deployment and its worker, and return when all of them are ready.

    Raises:
        ServiceError: A port is in use, or something did not start; whatever was started has been ended again.
    """
    root, started = root.resolve(), running(root)
    if len(started) == len(NAMES):
        say("Already up.")
        _say_where(started, say)
        return
    if started:
        say("Only partly up: starting again.")
        down(root, say)
    ports = {"Prefect": prefect_port, "MLflow": mlflow_port}
    if prefect_port == mlflow_port:
        raise ServiceError(
            f"Prefect and MLflow cannot both have port {mlflow_port}; choose: trace up --mlflow-port {mlflow_port + 1}"
        )
    for name, port in ports.items():
        if not free_port(port):
            raise ServiceError(
                f"port {port} for {name} is in use by another program; end that, or choose: "
                f"trace up --{name.lower()}-port {port + 1}"
            )
    started, api = {}, f"http://{HOST}:{prefect_port}/api"
    servers = server_environment(root) | {"PREFECT_API_URL": api}
    # PWD is where prefect.yaml sends the flow runs.
    worker = dict(os.environ) | environment(root) | {"PREFECT_API_URL": api, "PWD": str(root)}
    worker.setdefault("MLFLOW_TRACKING_URI", f"http://{HOST}:{mlflow_port}")

    def start(name: str, env: dict[str, str], *module: str) -> None:
        log = home(root) / "logs" / f"{name.lower()}.log"
        started[name] = launch(name, [sys.executable, "-m", *module], env, root, log, ports.get(name, 0))
        _record(root, started)  # at every step, so that `down` finds it whatever happens to this command

    mlflow = ["mlflow", "server", "--host", HOST, "--port", str(mlflow_port), "--workers", "1", "--no-serve-artifacts"]
    mlflow += ["--backend-store-uri", _database(root), "--default-artifact-root", _artifacts(root)]
    try:
        say("Starting the Prefect and MLflow servers (20 s; the first time, 40 s) ...")
        start("Prefect", servers, "prefect", "server", "start", "--host", HOST, "--port", str(prefect_port))
        start("MLflow", servers, *mlflow)
        wait_for(f"{api}/health", started["Prefect"], *started.values())
        say(f"Prefect is ready at {started['Prefect'].url}; deploying trace/train ...")
        # The worker makes the work pool, with the job template of its kind, if there is none.
        start("worker", worker, "prefect", "worker", "start", "--pool", POOL, "--type", "process")
        wait_for(f"{api}/work_pools/{POOL}", started["worker"], *started.values())
        _deploy(root, worker)
        wait_for(f"{started['MLflow'].url}/health", started["MLflow"], *started.values())
        say(f"MLflow is ready at {started['MLflow'].url}")
    except BaseException:
        for service in started.values():
            end(service)
        _record(root, {})
        raise
    _say_where(started, say)


def down(root: Path, say: Callable[[str], None] = print) -> None:
    """End exactly what `up` has started and recorded, with everything that it started in turn."""
    alive = running(root)
    for name in reversed(alive):  # the worker first, so that a flow run that it has to end can still report
        if end(alive[name]):
            say(f"Ended {name} (process {alive[name].pid}).")
    _record(root, {})
    if not alive:
        say("Nothing was up.")


def status(root: Path) -> dict[str, str]:
    """Each service and where it is, for people."""
    where = {name: f"up at {service.url}" if service.port else "up" for name, service in running(root).items()}
    return {name: where.get(name, "not running (trace up)") for name in NAMES}


def mlflow_uri(root: Path) -> str:
    """Where MLflow records: MLFLOW_TRACKING_URI if set, else the server of `trace up`, else its database itself."""
    server = running(root).get("MLflow")
    return os.environ.get("MLFLOW_TRACKING_URI") or (server.url if server else _database(root))


def running(root: Path) -> dict[str, Service]:
    """What `up` has started and is alive, by name, in the order of its start."""
    try:
        recorded = json.loads((home(root) / "services.json").read_text())
        found = {name: Service(**fields) for name, fields in recorded.items()}
        return {name: service for name, service in found.items() if service.process() is not None}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # none was recorded, or the record is damaged


def launch(name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, port: int = 0) -> Service:
    """Start a process in a session of its own (Ctrl-C here does not reach it), its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    return Service(name, child.pid, psutil.Process(child.pid).create_time(), port, str(log))


def wait_for(url: str, service: Service, *others: Service, timeout: float = 180.0) -> None:
    """Wait until a url of the service answers.

    Raises:
        ServiceError: It did not in time, or it or one of the others ended; with the last lines of the log.
    """
    deadline = time.monotonic() + timeout
    while True:
        for each in (service, *others):
            if each.process() is None:
                raise ServiceError(f"{each.name} ended while starting{_log_tail(each.log)}")
        if answers(url):
            return
        if time.monotonic() > deadline:
            raise ServiceError(f"{service.name} was not ready after {timeout:.0f} s{_log_tail(service.log)}")
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Whether a GET of the url succeeds, without a proxy."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def end(service: Service, grace: float = 15.0) -> bool:
    """End a service and all that it started: SIGTERM, seconds to finish, SIGKILL. Returns whether it was alive."""
    if (process := service.process()) is None:
        return False
    tree = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        tree += process.children(recursive=True)
    for signal_one, timeout in ((psutil.Process.terminate, grace), (psutil.Process.kill, 5.0)):
        for each in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                signal_one(each)  # psutil checks the creation time again before it signals
        tree = psutil.wait_procs(tree, timeout=timeout)[1]
    return True


def free_port(port: int = 0) -> int:
    """The port, or any, if it can be had on loopback; else 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return 0
        return int(probe.getsockname()[1])


def _deploy(root: Path, env: dict[str, str]) -> None:
    """Registers the flow as prefect.yaml says."""
    command, log = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], home(root) / "logs/deploy.log"
    with log.open("wb") as output:
        done = subprocess.run(command, env=env, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    if done.returncode:
        raise ServiceError(f"the deployment of prefect.yaml failed{_log_tail(log)}")


def _say_where(services: dict[str, Service], say: Callable[[str], None]) -> None:
    prefect = services["Prefect"]
    say(f"  Prefect  {prefect.url}")
    say(f"  MLflow   {services['MLflow'].url}  (choose 'Model training' at the top left)")
    prefix = "" if prefect.port == 4200 else f"PREFECT_API_URL={prefect.url}/api "
    say(f"Next: {prefix}prefect deployment run trace/train -p seed=3      End: trace down")


def _log_tail(log: str | Path, lines: int = 12) -> str:
    """The end of a log file, as the end of an error message that names the file."""
    text = Path(log).read_text(errors="replace") if Path(log).exists() else ""
    kept = [f"  {line}" for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join([f"; the end of {log}:", *kept]) if kept else f"; its log {log} is empty"


def home(root: Path) -> Path:
    """The folder of all that the services keep."""
    return root.resolve() / ".trace"


def _database(root: Path) -> str:
    folder = home(root) / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(folder / 'mlflow.db').as_posix()}"


def _artifacts(root: Path) -> str:
    return (home(root) / "mlflow" / "artifacts").as_uri()


def _record(root: Path, services: dict[str, Service]) -> None:
    path = home(root) / "services.json"
    if not services:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=2))
    temporary.replace(path)
