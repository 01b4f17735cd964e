"""Real servers on free ports, in a temporary folder. One `up` serves most of the tests."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from flows import services
from flows.processes import Service, answers, end, free_port, popen

REPOSITORY = Path(__file__).parents[2]
FLOW = """
    import os
    import time
    from pathlib import Path
    from typing import Any

    from prefect import flow, get_run_logger, task
    from prefect.settings import temporary_settings

    @task
    def stage(path: str) -> str:
        get_run_logger().info("a line from %s", path)
        return path + "/"

    @flow(name="iteration", flow_run_name="trace-{run_id}-{number:04d}")
    def iteration(run_id: str, number: int) -> str:
        return stage(stage(f"{number}"))

    @flow(name="trace")
    def trace(
        params: str = "params.yaml", overrides: dict[str, Any] | None = None, arm: str | None = None,
        seed: int | None = None, run_id: str | None = None,
    ) -> str:
        if run_id == "held":
            Path("began.txt").touch()
            while not Path("go.txt").exists():
                time.sleep(0.1)
        with temporary_settings({"flows.heartbeat_frequency": None}):
            for number in range(3):
                iteration(run_id or "demo", number)
        seen = (seed, Path.cwd(), os.environ["MLFLOW_TRACKING_URI"], os.environ["PREFECT_HOME"])
        Path("ran.txt").write_text(" ".join(map(str, seen)))
        return "done"
"""
COMMAND = """
    import os, sys, time
    from pathlib import Path
    from flows import services

    root = Path.cwd()
    os.environ.update(services.environment(root))
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_uri(root)
    try:
        with services.prefect_api(root) as api:
            print(api.url, flush=True)
            sys.path.insert(0, "dummy")
            from dummy_flow import trace
            api.wait()
            trace(run_id="demo")
            print("flow done", flush=True)
            time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
"""
SUBMITS = """
    import importlib, pkgutil, sys, threading
    import torch
    from prefect import Task, flow, task
    from prefect.futures import wait
    import tasks

    names = [f"tasks.{one.name}" for one in pkgutil.iter_modules(tasks.__path__)] + ["flows.shards"]
    ours = {id(t): t for name in names for t in vars(importlib.import_module(name)).values() if isinstance(t, Task)}
    model = torch.nn.Linear(2, 2)
    model.lock = threading.Lock()  # which no cache key can be made of

    def takes(model):
        return 0

    @task(cache_policy=next(iter(ours.values())).cache_policy, persist_result=False)
    def small(number):
        return number

    @flow
    def control():
        task(takes, name="control")(model)

    @flow(name="many")
    def many():
        for one in ours.values():
            Task(takes, name=one.name, cache_policy=one.cache_policy, persist_result=one.persist_result)(model)
        futures = [small.submit(number) for number in range(200)]
        assert not wait(futures).not_done
        return sorted(future.result() for future in futures) == list(range(200))

    control()
    print("control done", file=sys.stderr, flush=True)
    print(len(ours), many())
"""


def _layout(root: Path) -> Path:
    (root / "flows").mkdir()
    (root / "flows" / "train.py").write_text(dedent(FLOW))
    (root / "dummy").mkdir()
    (root / "dummy" / "dummy_flow.py").write_text(dedent(FLOW))
    (root / "command.py").write_text(dedent(COMMAND))
    (root / "submits.py").write_text(dedent(SUBMITS))
    (root / "prefect.yaml").write_text((REPOSITORY / "prefect.yaml").read_text())
    return root


@pytest.fixture(scope="module", autouse=True)
def _clean_environment() -> Iterator[None]:
    """Nothing of the developer's own servers, and no settings left behind."""
    with pytest.MonkeyPatch.context() as patch:
        for key in [key for key in os.environ if key.startswith(("PREFECT_", "MLFLOW_"))]:
            patch.delenv(key)
        yield


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = _layout(tmp_path_factory.mktemp("up"))
    try:
        services.up(root, free_port(), free_port(), say=lambda line: None)
        yield root
    finally:
        services.down(root, say=lambda line: None)


def _listening(process: psutil.Process) -> set[str]:
    family = [process, *process.children(recursive=True)]
    return {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}


def _url(root: Path, name: str) -> str:
    return services.status(root)[name].removeprefix("up at ")


def _database(root: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(root / ".trace" / "prefect" / "prefect.db") as connection:
        return connection.execute(query).fetchall()


def test_up_is_healthy_and_only_on_loopback(stack: Path) -> None:
    assert answers(f"{_url(stack, 'Prefect')}/api/health")
    assert answers(f"{_url(stack, 'MLflow')}/health")
    for service in services._recorded(stack).values():
        process = service.process()
        assert process is not None
        assert _listening(process) <= {"127.0.0.1"}
    assert services.mlflow_uri(stack) == _url(stack, "MLflow")


def test_deployment_runs_in_the_project_with_its_settings(stack: Path) -> None:
    api = _url(stack, "Prefect") + "/api"
    command = [sys.executable, "-m", "prefect", "deployment", "run", "trace/train", "-p", "seed=3", "--watch"]
    elsewhere = {**os.environ, "PREFECT_API_URL": api, "PREFECT_HOME": str(stack / "elsewhere"), "DO_NOT_TRACK": "1"}
    subprocess.run(command, env=elsewhere, cwd="/", check=True, capture_output=True, timeout=600)
    expected = f"3 {stack} {_url(stack, 'MLflow')} {stack / '.trace' / 'prefect'}"
    assert (stack / "ran.txt").read_text() == expected


def test_up_twice_says_so(stack: Path) -> None:
    before, lines = services._recorded(stack), list[str]()
    services.up(stack, say=lines.append)
    assert lines[0] == "Already up."
    assert services._recorded(stack) == before


def test_port_in_use_names_port_and_option(stack: Path, tmp_path: Path) -> None:
    port = services._recorded(stack)["MLflow"].port
    with pytest.raises(services.ServiceError, match=f"port {port} for MLflow .* trace up --mlflow-port {port + 1}"):
        services.up(tmp_path, free_port(), port, say=lambda line: None)
    assert not (tmp_path / ".trace" / "services.json").exists()


def test_one_port_for_both_servers_is_refused(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(services.ServiceError, match=f"cannot both have port {port}; choose: trace up --mlflow-port"):
        services.up(tmp_path, port, port, say=lambda line: None)
    assert not (tmp_path / ".trace" / "services.json").exists()


def test_a_server_that_dies_shows_its_log_and_ends_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, command: Sequence[str], *rest: Any) -> Any:
        return popen(name, [sys.executable, "-c", "exit('no such table')"] if name == "MLflow" else command, *rest)

    monkeypatch.setattr(services, "popen", broken)
    port = free_port()
    with pytest.raises(
        services.ServiceError, match=r"MLflow ended while starting; the end of .*mlflow\.log:\n  no such"
    ):
        services.up(tmp_path, port, free_port(), say=lambda line: None)
    assert not services._recorded(tmp_path)
    assert not any(str(port) in p.cmdline() for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE)


def test_recycled_process_id_is_not_ended(tmp_path: Path) -> None:
    _, bystander = popen("sleep", ["sleep", "60"], os.environ, tmp_path, tmp_path / "log")
    try:
        earlier = replace(bystander, created=bystander.created - 1000)
        services._record(tmp_path, {"Prefect": earlier})
        lines: list[str] = []
        services.down(tmp_path, say=lines.append)
        assert lines == ["Nothing was up."]
        assert bystander.process() is not None
    finally:
        assert end([bystander]) == [bystander]
    assert bystander.process() is None


def test_mlflow_artefacts_lie_in_the_same_place_with_and_without_server(stack: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from flows import services;"
        "os.environ.update(services.environment(Path.cwd())); from mlflow import MlflowClient as C;"
        "[print(C(u).get_experiment(C(u).create_experiment(u)).artifact_location) for u in sys.argv[1:]]"
    )
    uris = [services.mlflow_uri(stack), services._database(stack)]
    command = [sys.executable, "-c", script, *uris]
    done = subprocess.run(command, cwd=stack, env=_plain(), capture_output=True, text=True, timeout=300, check=True)
    places = done.stdout.split()
    assert len(places) == 2
    assert all(place.startswith((stack / ".trace" / "mlflow" / "artifacts").as_uri()) for place in places)


def test_c75_submitted_tasks_all_complete_and_a_module_as_input_is_no_matter(stack: Path) -> None:
    environment = _plain() | services.environment(stack) | {"PREFECT_API_URL": _url(stack, "Prefect") + "/api"}
    command = [sys.executable, "submits.py"]
    done = subprocess.run(command, cwd=stack, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, whole = done.stdout.split()[-2:]
    assert int(found) >= 12
    assert whole == "True"
    control, ours = done.stderr.split("control done")
    assert "cache key" in control
    assert "cache key" not in ours
    states = "SELECT t.state_type FROM task_run t JOIN flow_run f ON t.flow_run_id = f.id WHERE f.name = '{}'"
    name = str(
        _database(stack, "SELECT f.name FROM flow_run f JOIN flow ON f.flow_id = flow.id WHERE flow.name = 'many'")[0][
            0
        ]
    )
    _until(lambda: _database(stack, states.format(name)) == [("COMPLETED",)] * (200 + int(found)))


def test_run_goes_on_when_its_worker_is_killed(stack: Path) -> None:
    api = {"PREFECT_API_URL": _url(stack, "Prefect") + "/api", "PREFECT_HOME": str(stack / "elsewhere")}
    command = [sys.executable, "-m", "prefect", "deployment", "run", "trace/train", "-p", "run_id=held"]
    subprocess.run(command, env={**os.environ, **api}, cwd="/", check=True, capture_output=True, timeout=600)
    _until((stack / "began.txt").exists)
    recorded = services._recorded(stack)
    worker = recorded["worker"].process()
    assert worker is not None
    worker.kill()
    _until(lambda: recorded["worker"].process() is None)
    (stack / "go.txt").touch()
    states = "SELECT state_type FROM flow_run WHERE parameters LIKE '%\"held\"%'"
    _until(lambda: _database(stack, states) == [("COMPLETED",)] * 4)  # it and its three iterations
    again = services._Stack(stack, recorded["Prefect"].port, recorded["MLflow"].port)
    again.services = recorded
    again.start_worker()


def test_down_ends_exactly_what_up_started(stack: Path) -> None:
    _, bystander = popen("sleep", ["sleep", "60"], os.environ, stack, stack / "log")
    recorded = services._recorded(stack)
    family = [p for s in recorded.values() if (top := s.process()) for p in (top, *top.children(recursive=True))]
    try:
        lines: list[str] = []
        services.down(stack, say=lines.append)
        assert len(lines) == 3
        assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert bystander.process() is not None
        assert not (stack / ".trace" / "services.json").exists()
    finally:
        end([bystander])


def test_temporary_server_is_silent_and_keeps_the_runs(stack: Path) -> None:
    """After `down`, in the same folder. Ctrl-C right after the last task: nothing is lost, and nothing is said."""
    states = "SELECT state_type, COUNT(*) FROM {} GROUP BY 1"
    lines = "SELECT COUNT(*) FROM log WHERE message LIKE 'a line from%'"
    runs = dict(_database(stack, states.format("flow_run")))["COMPLETED"]
    tasks = dict(_database(stack, states.format("task_run")))["COMPLETED"]
    logged = _database(stack, lines)[0][0]
    with _parent(stack) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert parent.stdout.readline() == "flow done\n"
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=300)
    assert (parent.returncode, errors) == (130, "")
    assert not answers(f"{url}/health")
    assert dict(_database(stack, states.format("flow_run"))) == {"COMPLETED": runs + 4}
    assert dict(_database(stack, states.format("task_run"))) == {"COMPLETED": tasks + 3 * 2 + 3}
    assert _database(stack, lines)[0][0] == logged + 3 * 2
    assert _database(stack, "SELECT COUNT(*) FROM flow_run WHERE name = 'trace-demo-0002'")[0][0] == 2


def test_temporary_server_ends_when_its_parent_is_killed(stack: Path) -> None:
    with _parent(stack) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        while not answers(f"{url}/health"):
            time.sleep(0.1)
        assert _listening(psutil.Process(parent.pid)) == {"127.0.0.1"}
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 15
    while answers(f"{url}/health") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not answers(f"{url}/health")


def _until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


@contextmanager
def _parent(root: Path) -> Iterator[subprocess.Popen[str]]:
    command, pipe = [sys.executable, "command.py"], subprocess.PIPE
    parent = subprocess.Popen(command, cwd=root, env=_plain(), stdout=pipe, stderr=pipe, text=True)
    try:
        yield parent
    finally:
        parent.kill()
        parent.communicate()


def _plain() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def test_services_survive_on_disk(tmp_path: Path) -> None:
    service = Service("Prefect", 1, 2.0, 4200, "log")
    services._record(tmp_path, {"Prefect": service})
    assert services._recorded(tmp_path) == {"Prefect": service}
    (tmp_path / ".trace" / "services.json").write_text(json.dumps(["damaged"]))
    assert services._recorded(tmp_path) == {}
