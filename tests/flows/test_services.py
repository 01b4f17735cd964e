"""Real servers on free ports, in a temporary folder. One `up` serves most of the tests."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from flows import services
from flows.services import Service, answers, end, free_port, launch

REPOSITORY = Path(__file__).parents[2]
FLOW = """
    import os
    import time
    from pathlib import Path

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
    def trace(seed: int | None = None, run_id: str = "demo") -> str:
        if run_id == "held":
            Path("began.txt").touch()
            while not Path("go.txt").exists():
                time.sleep(0.1)
        with temporary_settings({"flows.heartbeat_frequency": None}):
            for number in range(3):
                iteration(run_id, number)
        seen = (seed, Path.cwd(), os.environ["MLFLOW_TRACKING_URI"], os.environ["PREFECT_HOME"])
        Path("ran.txt").write_text(" ".join(map(str, seen)))
        return "done"
"""
COMMAND = """
    import os, sys, time
    from pathlib import Path
    from runpy import run_path
    from flows import services
    from flows.temporary_server import prefect_api

    os.environ.update(services.environment(Path.cwd()) | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"})
    os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_uri(Path.cwd())
    try:
        with prefect_api(Path.cwd()) as api:
            print(api.url, flush=True)
            trace = run_path("flows/train.py")["trace"]
            api.wait()
            trace()
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
ARTEFACTS = """
    import os, sys
    from pathlib import Path
    from flows import services

    os.environ.update(services.environment(Path.cwd()))
    from mlflow import MlflowClient

    for client in map(MlflowClient, sys.argv[1:]):
        print(client.get_experiment(client.create_experiment(client.tracking_uri)).artifact_location)
"""


@pytest.fixture(scope="module", autouse=True)
def _clean_environment() -> Iterator[None]:
    """Nothing of the developer's own servers, and no settings left behind."""
    with pytest.MonkeyPatch.context() as patch:
        for key in [key for key in os.environ if key.startswith(("PREFECT_", "MLFLOW_"))]:
            patch.delenv(key)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        yield


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("up")
    (root / "flows").mkdir()
    for name, text in {"flows/train": FLOW, "command": COMMAND, "submits": SUBMITS, "artefacts": ARTEFACTS}.items():
        (root / f"{name}.py").write_text(dedent(text))
    (root / "prefect.yaml").write_text((REPOSITORY / "prefect.yaml").read_text())
    try:
        services.up(root, free_port(), free_port(), say=lambda line: None)
        yield root
    finally:
        services.down(root, say=lambda line: None)


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Service]:
    sleep = launch("sleep", ["sleep", "600"], os.environ, tmp_path, tmp_path / "log")
    yield sleep
    assert end(sleep)  # it was alive
    assert sleep.process() is None


def _python(root: Path, *command: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd or root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done


def _deployment(root: Path, *parameter: str) -> None:
    """Runs the deployment from elsewhere."""
    away = {"PREFECT_API_URL": _url(root, "Prefect") + "/api", "PREFECT_HOME": str(root / "elsewhere")}
    _python(root, "-m", "prefect", "deployment", "run", "trace/train", "-p", *parameter, cwd=Path("/"), **away)


def _listening(process: psutil.Process) -> set[str]:
    family = [process, *process.children(recursive=True)]
    return {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}


def _url(root: Path, name: str) -> str:
    return services.status(root)[name].removeprefix("up at ")


def _database(root: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / ".trace" / "prefect" / "prefect.db")) as connection:
        return connection.execute(query).fetchall()


def _until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


@contextmanager
def _command(root: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command with a temporary server, and the URL of that."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "command.py"], cwd=root, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_up_is_healthy_and_only_on_loopback(stack: Path) -> None:
    assert answers(f"{_url(stack, 'Prefect')}/api/health")
    assert answers(f"{_url(stack, 'MLflow')}/health")
    started = services.running(stack)
    assert list(started) == list(services.NAMES)
    assert all(_listening(process) <= {"127.0.0.1"} for s in started.values() if (process := s.process()))
    assert services.mlflow_uri(stack) == _url(stack, "MLflow")


def test_deployment_runs_in_the_project_with_its_settings(stack: Path) -> None:
    _deployment(stack, "seed=3", "--watch")
    expected = f"3 {stack} {_url(stack, 'MLflow')} {stack / '.trace' / 'prefect'}"
    assert (stack / "ran.txt").read_text() == expected


def test_up_twice_says_so(stack: Path) -> None:
    before, lines = services.running(stack), list[str]()
    services.up(stack, say=lines.append)
    assert lines[0] == "Already up."
    assert services.running(stack) == before


def test_a_port_that_cannot_be_had_is_named_with_the_option(stack: Path, tmp_path: Path) -> None:
    used, free = services.running(stack)["MLflow"].port, free_port()
    for ports, said in (
        ((free, used), f"port {used} for MLflow .* trace up --mlflow-port {used + 1}"),
        ((used, free), f"port {used} for Prefect .* trace up --prefect-port {used + 1}"),
        ((free, free), f"cannot both have port {free}; choose: trace up --mlflow-port {free + 1}"),
    ):
        with pytest.raises(services.ServiceError, match=said):
            services.up(tmp_path, *ports, say=lambda line: None)
    assert not (tmp_path / ".trace" / "services.json").exists()


def test_a_server_that_dies_shows_its_log_and_ends_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, command: Sequence[str], *rest: Any) -> Service:
        started.append(
            launch(name, [sys.executable, "-c", "exit('no such table')"] if name == "MLflow" else command, *rest)
        )
        return started[-1]

    started: list[Service] = []
    monkeypatch.setattr(services, "launch", broken)
    with pytest.raises(
        services.ServiceError, match=r"MLflow ended while starting; the end of .*mlflow\.log:\n  no such"
    ):
        services.up(tmp_path, free_port(), free_port(), say=lambda line: None)
    assert [service.process() for service in started] == [None, None]
    assert not services.running(tmp_path)


def test_recycled_process_id_is_not_ended(tmp_path: Path, bystander: Service) -> None:
    services._record(tmp_path, {"Prefect": replace(bystander, created=bystander.created - 1000)})
    lines: list[str] = []
    services.down(tmp_path, say=lines.append)
    assert lines == ["Nothing was up."]


def test_mlflow_artefacts_lie_in_the_same_place_with_and_without_server(stack: Path) -> None:
    done = _python(stack, "artefacts.py", services.mlflow_uri(stack), services._database(stack))
    places = done.stdout.split()
    assert len(places) == 2
    assert all(place.startswith((stack / ".trace" / "mlflow" / "artifacts").as_uri()) for place in places)


def test_c75_submitted_tasks_all_complete_and_a_module_as_input_is_no_matter(stack: Path) -> None:
    api = {"PREFECT_API_URL": _url(stack, "Prefect") + "/api"}
    done = _python(stack, "submits.py", **services.environment(stack), **api)
    found, whole = done.stdout.split()[-2:]
    assert int(found) >= 12
    assert whole == "True"
    control, ours = done.stderr.split("control done")
    assert "cache key" in control
    assert "cache key" not in ours
    states = (
        "SELECT t.state_type FROM task_run t JOIN flow_run r ON t.flow_run_id = r.id JOIN flow f ON r.flow_id = f.id "
        "WHERE f.name = 'many'"
    )
    _until(lambda: _database(stack, states) == [("COMPLETED",)] * (200 + int(found)))


def test_run_goes_on_when_its_worker_is_killed_and_up_makes_whole_what_is_partly_up(stack: Path) -> None:
    _deployment(stack, "run_id=held")
    _until((stack / "began.txt").exists)
    before = services.running(stack)
    worker = before["worker"].process()
    assert worker is not None
    worker.kill()
    _until(lambda: before["worker"].process() is None)
    (stack / "go.txt").touch()
    states = "SELECT state_type FROM flow_run WHERE parameters LIKE '%\"held\"%'"
    _until(lambda: _database(stack, states) == [("COMPLETED",)] * 4)  # it and its three iterations
    lines: list[str] = []
    services.up(stack, before["Prefect"].port, before["MLflow"].port, say=lines.append)
    assert lines[0] == "Only partly up: starting again."
    after = services.running(stack)
    assert list(after) == list(services.NAMES)
    assert not {service.pid for service in before.values()} & {service.pid for service in after.values()}


def test_down_ends_exactly_what_up_started(stack: Path, bystander: Service) -> None:
    recorded = services.running(stack).values()
    family = [p for s in recorded if (top := s.process()) for p in (top, *top.children(recursive=True))]
    lines: list[str] = []
    services.down(stack, say=lines.append)
    assert [line.split()[1] for line in lines] == ["worker", "MLflow", "Prefect"]
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not (stack / ".trace" / "services.json").exists()
    assert set(services.status(stack).values()) == {"not running (trace up)"}


def test_temporary_server_is_silent_and_keeps_the_runs(stack: Path) -> None:
    """After `down`, in the same folder. Ctrl-C right after the last task: nothing is lost, and nothing is said."""

    def counts() -> tuple[int, int, int, int]:
        runs, tasks = (
            dict(_database(stack, f"SELECT state_type, COUNT(*) FROM {table} GROUP BY 1"))
            for table in ("flow_run", "task_run")
        )
        assert runs.keys() == tasks.keys() == {"COMPLETED"}
        lines = _database(stack, "SELECT COUNT(*) FROM log WHERE message LIKE 'a line from%'")[0][0]
        named = _database(stack, "SELECT COUNT(*) FROM flow_run WHERE name = 'trace-demo-0002'")[0][0]
        return runs["COMPLETED"], tasks["COMPLETED"], lines, named

    before = counts()
    with _command(stack) as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "flow done\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (130, "")
    assert not answers(f"{url}/health")
    # Four flow runs; in each of three iterations two tasks, each with a line; and the iterations are tasks of the run.
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [4, 3 * 2 + 3, 3 * 2, 1]


def test_temporary_server_ends_when_its_command_is_killed(stack: Path) -> None:
    with _command(stack) as (process, url):
        _until(lambda: answers(f"{url}/health"))
        assert _listening(psutil.Process(process.pid)) == {"127.0.0.1"}
        process.kill()
    _until(lambda: not answers(f"{url}/health"))


@pytest.mark.parametrize("text", ['["damaged"]', '{"Prefect": {"pid": 1}}', "{", ""])
def test_a_damaged_record_is_none(tmp_path: Path, bystander: Service, text: str) -> None:
    services._record(tmp_path, {"Prefect": bystander})
    assert services.running(tmp_path) == {"Prefect": bystander}
    (tmp_path / ".trace" / "services.json").write_text(text)
    assert services.running(tmp_path) == {}


def test_a_server_that_does_not_speak_http_is_no_answer() -> None:
    def greet() -> None:
        with closing(server.accept()[0]) as client:
            client.recv(1000)
            client.sendall(b"SSH-2.0-other\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        assert not answers(f"http://127.0.0.1:{server.getsockname()[1]}/api/health")
        thread.join()
