"""Real servers on free ports, in a temporary folder. One `up` serves most of the tests."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copy
from textwrap import dedent
from typing import Any

import psutil
import pytest

from flows import services
from flows.services import Service, ServiceError, answers, end, free_port, launch

REPOSITORY, SERVED = Path(__file__).parents[2], Path(__file__).parent / "served"
ARTEFACTS = """
    import os, sys; from pathlib import Path; from flows import services
    os.environ.update(services.environment(Path.cwd()))
    from mlflow import MlflowClient as C
    for uri in sys.argv[1:]:
        print(C(uri).get_experiment(C(uri).create_experiment(uri)).artifact_location)
"""
DAMAGED = '{"Prefect": {"name": "", "pid": "x", "created": 0, "port": 0, "log": ""}}'
QUIET: dict[str, Any] = {"say": lambda line: None}


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
    copy(SERVED / "train.py", root / "flows")
    copy(REPOSITORY / "prefect.yaml", root)
    try:
        services.up(root, free_port(), free_port(), **QUIET)
        yield root
    finally:
        services.down(root, **QUIET)


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Service]:
    sleep = launch("sleep", ["sleep", "600"], os.environ, tmp_path, tmp_path / "log")
    yield sleep
    assert end(sleep)  # it was alive
    assert sleep.process() is None


def _python(root: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([sys.executable, *command], cwd=root, env={**os.environ, **env}, **kept)
    assert done.returncode == 0, done.stderr
    return done


def _deployment(root: Path, *parameter: str) -> None:
    """Runs the deployment from elsewhere."""
    command = ("-m", "prefect", "deployment", "run", "trace/train", "-p", *parameter)
    _python(Path("/"), *command, PREFECT_API_URL=_url(root, "Prefect") + "/api", PREFECT_HOME=str(root / "elsewhere"))


def _family(process: psutil.Process | None) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)] if process else []


def _listening(family: list[psutil.Process]) -> set[str]:
    connections = [connection for process in family for connection in process.net_connections("inet")]
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


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
    process = subprocess.Popen([sys.executable, SERVED / "command.py"], cwd=root, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_up_is_healthy_and_only_on_loopback_and_says_so_when_asked_again(stack: Path) -> None:
    started, lines = services.running(stack), list[str]()
    assert list(started) == list(services.NAMES)
    assert _listening([p for service in started.values() for p in _family(service.process())]) == {"127.0.0.1"}
    assert answers(f"{_url(stack, 'Prefect')}/api/health")
    assert answers(f"{_url(stack, 'MLflow')}/health")
    assert services.mlflow_uri(stack) == _url(stack, "MLflow")
    services.up(stack, say=lines.append)
    assert lines[0] == "Already up."
    assert services.running(stack) == started


def test_deployment_runs_in_the_project_with_its_settings(stack: Path) -> None:
    _deployment(stack, "seed=3", "--watch")
    expected = f"3 {stack} {_url(stack, 'MLflow')} {stack / '.trace' / 'prefect'}"
    assert (stack / "ran.txt").read_text() == expected


def test_a_port_that_cannot_be_had_is_named_with_the_option(stack: Path, tmp_path: Path) -> None:
    used, free = services.running(stack)["MLflow"].port, free_port()
    for ports, said in (
        ((free, used), f"port {used} for MLflow .* trace up --mlflow-port {used + 1}"),
        ((used, free), f"port {used} for Prefect .* trace up --prefect-port {used + 1}"),
        ((free, free), f"cannot both have port {free}; choose: trace up --mlflow-port {free + 1}"),
    ):
        with pytest.raises(ServiceError, match=said):
            services.up(tmp_path, *ports, **QUIET)
    assert not (tmp_path / ".trace" / "services.json").exists()


def test_a_server_that_dies_shows_its_log_and_ends_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, command: list[str], *rest: Any) -> Service:
        if name == "MLflow":
            command = [sys.executable, "-c", "exit('no such table')"]
        started.append(launch(name, command, *rest))
        return started[-1]

    started: list[Service] = []
    monkeypatch.setattr(services, "launch", broken)
    with pytest.raises(ServiceError, match=r"MLflow ended while starting; the end of .*mlflow\.log:\n  no such"):
        services.up(tmp_path, free_port(), free_port(), **QUIET)
    assert [service.process() for service in started] == [None, None]
    assert not services.running(tmp_path)


def test_recycled_process_id_is_not_ended(tmp_path: Path, bystander: Service) -> None:
    services._record(tmp_path, {"Prefect": replace(bystander, created=bystander.created - 1000)})
    lines: list[str] = []
    services.down(tmp_path, say=lines.append)
    assert lines == ["Nothing was up."]


def test_mlflow_artefacts_lie_in_the_same_place_with_and_without_server(stack: Path) -> None:
    done = _python(stack, "-c", dedent(ARTEFACTS), services.mlflow_uri(stack), services._database(stack))
    places = done.stdout.split()
    assert len(places) == 2
    assert all(place.startswith((stack / ".trace" / "mlflow" / "artifacts").as_uri()) for place in places)


def test_c75_submitted_tasks_all_complete_and_a_module_as_input_is_no_matter(stack: Path) -> None:
    api = {"PREFECT_API_URL": _url(stack, "Prefect") + "/api"}
    done = _python(stack, str(SERVED / "submits.py"), **services.environment(stack), **api)
    found, whole = done.stdout.split()[-2:]
    assert int(found) >= 12
    assert whole == "True"
    control, ours = done.stderr.split("control done")
    assert "cache key" in control
    assert "cache key" not in ours
    runs = "SELECT r.id FROM flow_run r JOIN flow f ON r.flow_id = f.id WHERE f.name = 'many'"
    states = f"SELECT state_type FROM task_run WHERE flow_run_id IN ({runs})"
    _until(lambda: _database(stack, states) == [("COMPLETED",)] * (200 + int(found)))


def test_run_goes_on_when_its_worker_is_killed_and_up_makes_whole_what_is_partly_up(stack: Path) -> None:
    _deployment(stack, "run_id=held")
    _until((stack / "held.began").exists)
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
    family = [p for service in services.running(stack).values() for p in _family(service.process())]
    lines: list[str] = []
    services.down(stack, say=lines.append)
    assert [line.split()[1] for line in lines] == ["worker", "MLflow", "Prefect"]
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not (stack / ".trace" / "services.json").exists()
    assert set(services.status(stack).values()) == {"not running (trace up)"}


def test_temporary_server_is_silent_and_keeps_the_runs(stack: Path) -> None:
    """After `down`, in the same folder. Ctrl-C right after the last task: nothing is lost, and nothing is said."""

    def counts() -> list[int]:
        where = (
            "flow_run WHERE state_type = 'COMPLETED'",
            "task_run WHERE state_type = 'COMPLETED'",
            "log WHERE message LIKE 'a line from%'",
            "flow_run WHERE name = 'trace-demo-0002'",
            "flow_run WHERE state_type != 'COMPLETED'",
        )
        return [_database(stack, f"SELECT COUNT(*) FROM {rows}")[0][0] for rows in where]

    before = counts()
    with _command(stack) as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "flow done\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (130, "")
    assert not answers(f"{url}/health")
    # Three iterations, of two tasks and two lines each, are tasks of the run.
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [4, 9, 6, 1, 0]


def test_temporary_server_ends_when_its_command_is_killed(stack: Path) -> None:
    with _command(stack) as (process, url):
        _until(lambda: answers(f"{url}/health"))
        assert _listening(_family(psutil.Process(process.pid))) == {"127.0.0.1"}
        process.kill()
    _until(lambda: not answers(f"{url}/health"))


@pytest.mark.parametrize("text", ['["damaged"]', '{"Prefect": {"pid": 1}}', DAMAGED, "{", ""])
def test_a_damaged_record_is_none(tmp_path: Path, bystander: Service, text: str) -> None:
    services._record(tmp_path, {"Prefect": bystander})
    assert services.running(tmp_path) == {"Prefect": bystander}
    (tmp_path / ".trace" / "services.json").write_text(text)
    assert services.running(tmp_path) == {}


def test_what_speaks_another_protocol_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        found = pool.submit(answers, f"http://127.0.0.1:{server.getsockname()[1]}/api/health")
        with server.accept()[0] as client:
            client.recv(1000)
            client.sendall(b"SSH-2.0-other\r\n")
        assert not found.result()
