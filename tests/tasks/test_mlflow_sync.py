"""MLflow gets metrics.jsonl: each line once, under one run id, whatever happens to MLflow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mlflow
import pytest
from prefect.exceptions import TerminationSignal

from components.params.root import Params, compose
from components.storage import write_json, write_sealed, write_text
from flows.services import answers, free_port
from tasks.mlflow_sync import MlflowSync
from tasks.run import Run, lock, open_run
from tasks.stage import Stopped

LINE = {"iteration": 0, "budget/units": 24.0, "budget/factual_rollouts": 16, "budget/continuations": 16}
UNKNOWN = {"eval/accuracy": 0.5, "predictor/spearman_root": None}  # None: not defined, so there is nothing to log


@pytest.fixture
def run(params: Params, tmp_path: Path) -> Run:
    sections = {"run": {**params.run.model_dump(), "runs_dir": str(tmp_path)}, "tracking": {"mlflow": True}}
    return open_run(compose(params.model_dump() | sections), "r")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow, which takes seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mlflow.MlflowClient:
    monkeypatch.chdir(tmp_path)  # artefacts of a plain store go to the working folder
    shutil.copy(tables, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(uri)
    yield mlflow.MlflowClient(uri)
    mlflow.set_tracking_uri("")


def append(run: Run, *iterations: int) -> None:
    with run.metrics_path.open("a") as stream:
        stream.writelines(json.dumps(LINE | UNKNOWN | {"iteration": k}) + "\n" for k in iterations)


def steps(store: mlflow.MlflowClient, run: Run) -> list[int]:
    return [m.step for m in store.get_metric_history(run.manifest["mlflow_run_id"], "budget/units")]


def test_continued_run_goes_on_in_the_same_mlflow_run_and_logs_each_line_once(run, store):
    append(run, 0, 1)
    with MlflowSync(run, tags={"data": "abc"}) as sync:
        sync.notify()
    first = run.manifest["mlflow_run_id"]
    append(run, 2, 3)
    with MlflowSync(run, tags={"data": "abc"}) as sync:
        sync.notify()
    assert run.manifest["mlflow_run_id"] == first
    assert sorted(steps(store, run)) == [0, 1, 2, 3]
    logged = store.get_run(first)
    assert logged.info.status == "FINISHED"
    assert logged.data.params["allocation.arm"] == "trace"
    assert logged.data.tags["data"] == "abc"
    assert "predictor/spearman_root" not in logged.data.metrics
    assert len(store.search_runs([logged.info.experiment_id])) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError, "FAILED"),
        (KeyboardInterrupt, "KILLED"),
        (SystemExit, "KILLED"),
        (CancelledError, "KILLED"),
        (TerminationSignal, "KILLED"),
        (Stopped, "KILLED"),
    ],
)
def test_a_run_that_broke_failed_and_one_that_was_interrupted_was_killed(run, store, error, status):
    append(run, 0)

    def end() -> None:
        with MlflowSync(run, tags={}):
            raise error(signal.SIGTERM)

    before = time.time() * 1000 - 1
    with pytest.raises(error):
        end()
    info = store.get_run(run.manifest["mlflow_run_id"]).info
    assert info.status == status
    assert before <= info.start_time <= info.end_time <= time.time() * 1000


def test_a_run_is_found_by_what_it_is_and_who_began_it_when(run, store):
    run.note(commit="abc")
    stages = run.iteration(0) / "manifest.json"
    write_sealed(stages, {"generate": {"began": 1e9}})  # before MLflow could be reached
    append(run, 0)
    write_text(run.iteration(0) / "metrics.json", "{}")
    os.utime(run.iteration(0) / "metrics.json", (1.1e9, 1.1e9))
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    logged = store.get_run(run.manifest["mlflow_run_id"])
    tags = logged.data.tags
    assert (tags["arm"], tags["task"], tags["seed"]) == ("trace", "multihop", "0")
    assert (tags["mlflow.source.git.commit"], tags["mlflow.source.name"]) == ("abc", "trace train")
    assert tags["mlflow.user"] == logged.info.user_id
    assert logged.info.start_time == 1e12
    (point,) = store.get_metric_history(logged.info.run_id, "budget/units")
    assert point.timestamp == 1.1e12


def test_the_policy_after_the_last_update_is_the_one_that_mlflow_ranks(run, store):
    append(run, 0, 1)
    write_json(run.iteration(2) / "evaluation.json", {"accuracy": 0.75})
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    history = store.get_metric_history(run.manifest["mlflow_run_id"], "eval/accuracy")
    assert [(m.step, m.value) for m in history] == [(0, 0.5), (1, 0.5), (2, 0.75)]
    assert store.get_run(run.manifest["mlflow_run_id"]).data.metrics["eval/accuracy"] == 0.75


def test_outage_is_a_warning_and_the_next_time_catches_up(run, store, monkeypatch, caplog):
    append(run, 0)
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    assert "MLflow does not have all of run r" in caplog.text
    mlflow.set_tracking_uri(store.tracking_uri)
    append(run, 1)
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    assert sorted(steps(store, run)) == [0, 1]


def test_c76_number_that_is_not_finite_leaves_no_row(run, store):
    with run.metrics_path.open("a") as stream:
        stream.write(json.dumps(LINE | {"policy/loss": float("nan"), "policy/kl": float("inf")}) + "\n")
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    assert sync.failure is None
    logged = store.get_run(run.manifest["mlflow_run_id"]).data.metrics
    assert logged == {key: float(value) for key, value in LINE.items()}


def test_c76_parameter_that_changed_on_the_way_is_a_tag_and_no_exception(run, store):
    append(run, 0)
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    longer = run.params.model_dump()
    longer["run"]["iterations"] = 7
    run = open_run(compose(longer), "r")
    append(run, 1)
    with MlflowSync(run, tags={}) as sync:
        sync.notify()
    assert sync.failure is None
    logged = store.get_run(run.manifest["mlflow_run_id"])
    assert logged.data.params["run.iterations"] == "2"
    assert logged.data.tags["now.run.iterations"] == "7"
    assert sorted(steps(store, run)) == [0, 1]


def test_c76_killed_run_that_nobody_continues_does_not_stay_running(run, store):
    """MLflow holds three runs for running: a killed one, one that is being written, and one whose folder is gone."""
    others = [open_run(run.params, name) for name in ("killed", "alive", "gone")]
    with lock(others[1]):
        for other in others:
            MlflowSync(other, tags={})._connect()
        shutil.rmtree(others[2].path)
        ids = [found.info.run_id for found in store.search_runs(["1"], order_by=["attributes.start_time"])]
        with MlflowSync(run, tags={}) as sync:
            sync.notify()
    assert [store.get_run(one).info.status for one in ids] == ["KILLED", "RUNNING", "KILLED"]
    with MlflowSync(others[0], tags={}) as sync:  # continued after all
        sync.notify()
    assert store.get_run(ids[0]).info.status == "FINISHED"


def test_c76_server_killed_and_started_again_has_every_line_once_and_the_run_waits_for_nothing(
    run, tables, tmp_path, monkeypatch
):
    port = free_port()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    mlflow.set_tracking_uri(uri := f"http://127.0.0.1:{port}")
    try:
        with MlflowSync(run, tags={}, wait=120) as sync:
            shutil.copy(tables, tmp_path)
            with server(tmp_path, port):
                append(run, 0)
                sync.notify()
                until(lambda: sync._logged == 0)
            append(run, 1)  # the server is gone
            start = time.perf_counter()
            sync.notify()
            assert time.perf_counter() - start < 1
            until(lambda: sync.failure is not None)
            with server(tmp_path, port):
                append(run, 2)
                sync.notify()
                until(lambda: sync._logged == 2)
                sync.notify()
                client = mlflow.MlflowClient(uri)
                assert sorted(steps(client, run)) == [0, 1, 2]
                sync.__exit__(None, None, None)
                assert client.get_run(run.manifest["mlflow_run_id"]).info.status == "FINISHED"
    finally:
        mlflow.set_tracking_uri("")
    assert [line["iteration"] for line in run.metrics()] == [0, 1, 2]


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """An MLflow server that is killed at the end of the block."""
    command = ["-m", "mlflow", "server", "--port", str(port), "--workers", "1", "--no-serve-artifacts"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--default-artifact-root",
        str(folder / "files"),
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(true: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
