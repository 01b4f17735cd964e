"""The local services, all on loopback: a Prefect server, an MLflow server, and a worker for the deployment.

`trace up` starts them and `trace down` ends exactly these. `trace train` needs none of them: `prefect_api` and
`mlflow_uri` use what is running, or do without. Either way everything lies in `<root>/.trace`, so that a run made
without servers is there when they are started later.

Prefect and MLflow read their settings when they are imported, so nothing here imports them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from flows.processes import HOST, Service, ServiceError, answers, end, log_tail, popen, port_in_use, wait_until
from flows.temporary_server import ServerLost, TemporaryAPI

__all__ = ["ServerLost", "ServiceError", "down", "environment", "mlflow_uri", "prefect_api", "status", "up"]

POOL = "local"
_OPTIONS = {"Prefect": "--prefect-port", "MLflow": "--mlflow-port"}


def environment(root: Path) -> dict[str, str]:
    """The settings of every process of the project; what the user has set already stays.

    The times are of a subflow with nine empty tasks on two cores: 1.16 s by default, 0.2 s with these settings and
    `flows.heartbeat_frequency` None. (A flow's end waits for its heartbeat thread to wake, up to 1 s; no environment
    variable can turn that off, so a flow does, by `prefect.settings.temporary_settings` around its subflows.)
    """
    home = _home(root)
    settings = {
        # Everything in one folder, and no call leaves the machine.
        "PREFECT_HOME": str(home / "prefect"),
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


def up(root: Path, prefect_port: int = 4200, mlflow_port: int = 5000, say: Callable[[str], None] = print) -> None:
    """Start both servers, the deployment and its worker, and return when all of them are ready.

    Raises:
        ServiceError: A port is in use, or something did not start; whatever was started has been ended again.
    """
    root = root.resolve()
    running = _running(root)
    if len(running) == len(_Stack.NAMES):
        say("Already up.")
        _say_where(running, say)
        return
    if running:
        say("Only partly up: starting again.")
        down(root, say)
    if prefect_port == mlflow_port:
        raise ServiceError(
            f"Prefect and MLflow cannot both have port {mlflow_port}; choose: trace up --mlflow-port {mlflow_port + 1}"
        )
    for name, port in (("Prefect", prefect_port), ("MLflow", mlflow_port)):
        if port_in_use(port):
            raise ServiceError(
                f"port {port} for {name} is in use by another program; end that, or choose: "
                f"trace up {_OPTIONS[name]} {port + 1}"
            )
    stack = _Stack(root, prefect_port, mlflow_port)
    try:
        say("Starting the Prefect and MLflow servers (20 s; the first time, 40 s) ...")
        stack.start_servers()
        stack.wait("Prefect", "/api/health")
        say(f"Prefect is ready at {stack.services['Prefect'].url}; deploying trace/train ...")
        stack.start_worker()
        stack.deploy()
        stack.wait("MLflow", "/health")
        say(f"MLflow is ready at {stack.services['MLflow'].url}")
    except BaseException:
        end(stack.services.values())
        _record(root, {})
        raise
    _say_where(stack.services, say)


def down(root: Path, say: Callable[[str], None] = print) -> None:
    """End exactly what `up` has started and recorded, with everything that it started in turn."""
    recorded = _recorded(root.resolve())
    # The worker first, so that a flow run that it has to end can still report to the server.
    ended = end([recorded[n] for n in ("worker",) if n in recorded])
    ended += end([service for name, service in recorded.items() if name != "worker"])
    _record(root.resolve(), {})
    for service in ended:
        say(f"Ended {service.name} (process {service.pid}).")
    if not ended:
        say("Nothing was up.")


def status(root: Path) -> dict[str, str]:
    """Each service and where it is, for people."""
    running = _running(root.resolve())
    return {
        name: "not running (trace up)"
        if name not in running
        else f"up at {running[name].url}"
        if running[name].port
        else "up"
        for name in _Stack.NAMES
    }


def prefect_api(root: Path) -> TemporaryAPI:
    """The Prefect API for one command: PREFECT_API_URL if set, else that of `trace up`, else a short-lived server.

    Returns:
        A context manager. Entering it starts the server if need be, without waiting, and sets PREFECT_API_URL: import
        Prefect after that. Its `wait` blocks until the API answers.
    """
    root = root.resolve()
    url = os.environ.get("PREFECT_API_URL") or (f"{s.url}/api" if (s := _running(root).get("Prefect")) else None)
    return TemporaryAPI(root, _server_env(root), _home(root) / "logs" / f"prefect-{os.getpid()}.log", url)


def mlflow_uri(root: Path) -> str:
    """Where MLflow records: MLFLOW_TRACKING_URI if set, else the server of `trace up`, else its database itself."""
    server = _running(root.resolve()).get("MLflow")
    return os.environ.get("MLFLOW_TRACKING_URI") or (server.url if server else _database(root.resolve()))


class _Stack:
    """What `up` starts, recorded on disk at every step so that `down` finds it whatever happens to `up`."""

    NAMES = ("Prefect", "MLflow", "worker")

    def __init__(self, root: Path, prefect_port: int, mlflow_port: int) -> None:
        self.root, self.services = root, dict[str, Service]()
        self._ports = {"Prefect": prefect_port, "MLflow": mlflow_port}
        api = {"PREFECT_API_URL": f"http://{HOST}:{prefect_port}/api"}
        self._servers = _server_env(root) | api
        # PWD is where prefect.yaml sends the flow runs.
        self._worker = dict(os.environ) | environment(root) | api | {"PWD": str(root)}
        self._worker.setdefault("MLFLOW_TRACKING_URI", f"http://{HOST}:{mlflow_port}")

    def start_servers(self) -> None:
        prefect = ["server", "start", "--host", HOST, "--port", str(self._ports["Prefect"])]
        mlflow = [
            "server",
            "--host",
            HOST,
            "--port",
            str(self._ports["MLflow"]),
            "--workers",
            "1",
            "--no-serve-artifacts",
        ]
        mlflow += ["--backend-store-uri", _database(self.root), "--default-artifact-root", _artifacts(self.root)]
        self._start("Prefect", ["prefect", *prefect], self._servers)
        self._start("MLflow", ["mlflow", *mlflow], self._servers)

    def start_worker(self) -> None:
        """The worker makes the work pool, with the job template of its kind, if there is none."""
        self._start("worker", ["prefect", "worker", "start", "--pool", POOL, "--type", "process"], self._worker)
        pool = f"{self.services['Prefect'].url}/api/work_pools/{POOL}"
        wait_until(lambda: answers(pool), "the Prefect worker", self.services["worker"])

    def deploy(self) -> None:
        """Registers the flow as prefect.yaml says."""
        log = _home(self.root) / "logs" / "deploy.log"
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        with log.open("wb") as output:
            done = subprocess.run(
                command, env=self._worker, cwd=self.root, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if done.returncode:
            raise ServiceError(f"the deployment of prefect.yaml failed{log_tail(log)}")

    def wait(self, name: str, health: str) -> None:
        """Waits for one server, and fails at once if any of them dies."""
        service = self.services[name]
        wait_until(lambda: self._all_alive() and answers(service.url + health), f"the {name} server", service)

    def _all_alive(self) -> bool:
        for name, service in self.services.items():
            if service.process() is None:
                raise ServiceError(f"{name} ended while starting{log_tail(service.log)}")
        return True

    def _start(self, name: str, module: list[str], env: dict[str, str]) -> None:
        log = _home(self.root) / "logs" / f"{name.lower()}.log"
        command = [sys.executable, "-m", *module]
        _, self.services[name] = popen(name, command, env, self.root, log, self._ports.get(name, 0))
        _record(self.root, self.services)


def _server_env(root: Path) -> dict[str, str]:
    """Environment of a server. Its calls to other machines (a list of Prefect's integrations) fail at once."""
    nowhere = f"http://{HOST}:9"
    proxies = {
        name: nowhere for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    }
    local = {name: f"{HOST},localhost" for name in ("NO_PROXY", "no_proxy")}
    env = dict(os.environ) | environment(root) | proxies | local
    Path(env["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    return env


def _say_where(services: dict[str, Service], say: Callable[[str], None]) -> None:
    port = services["Prefect"].port
    prefix = "" if port == 4200 else f"PREFECT_API_URL={services['Prefect'].url}/api "
    say(f"  Prefect  {services['Prefect'].url}")
    say(f"  MLflow   {services['MLflow'].url}  (choose 'Model training' at the top left)")
    say(f"Next: {prefix}prefect deployment run trace/train -p seed=3      End: trace down")


def _home(root: Path) -> Path:
    return root.resolve() / ".trace"


def _database(root: Path) -> str:
    folder = _home(root) / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(folder / 'mlflow.db').as_posix()}"


def _artifacts(root: Path) -> str:
    return (_home(root) / "mlflow" / "artifacts").as_uri()


def _recorded(root: Path) -> dict[str, Service]:
    try:
        entries = json.loads((_home(root) / "services.json").read_text())
        return {name: Service(**fields) for name, fields in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _running(root: Path) -> dict[str, Service]:
    return {name: service for name, service in _recorded(root).items() if service.process() is not None}


def _record(root: Path, services: dict[str, Service]) -> None:
    path = _home(root) / "services.json"
    if not services:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=2))
    temporary.replace(path)
