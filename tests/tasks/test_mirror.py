"""MLflow mirrors metrics.jsonl: each line once, under one run id, whatever happens to MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest

from components.config import Params
from tasks.mirror import Mirror
from tasks.run import Run, open_run

LINE = {"iteration": 0, "budget/units": 24.0, "budget/bare_rollouts": 16, "budget/continuations": 16}
UNKNOWN = {"eval/accuracy": 0.5, "predictor/spearman_root": None}  # None: not defined, so there is nothing to log


@pytest.fixture
def run(params: Params, tmp_path: Path) -> Run:
    sections = {"run": {**params.run.model_dump(), "runs_dir": str(tmp_path)}, "tracking": {"mlflow": True}}
    return open_run(Params.model_validate(params.model_dump() | sections), "r")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mlflow.MlflowClient:
    monkeypatch.chdir(tmp_path)  # artefacts of a plain store go to the working folder
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
    with Mirror(run, tags={"data": "abc"}) as mirror:
        mirror.notify()
    first = run.manifest["mlflow_run_id"]
    append(run, 2, 3)
    with Mirror(run, tags={"data": "abc"}) as mirror:
        mirror.notify()
    assert run.manifest["mlflow_run_id"] == first
    assert sorted(steps(store, run)) == [0, 1, 2, 3]
    logged = store.get_run(first)
    assert logged.info.status == "FINISHED"
    assert logged.data.params["allocation.arm"] == "trace"
    assert logged.data.tags["data"] == "abc"
    assert "predictor/spearman_root" not in logged.data.metrics
    assert len(store.search_runs([logged.info.experiment_id])) == 1


def test_failed_block_is_marked_failed(run, store):
    append(run, 0)

    def fail() -> None:
        with Mirror(run, tags={}):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.get_run(run.manifest["mlflow_run_id"]).info.status == "FAILED"


def test_outage_is_a_warning_and_the_next_time_catches_up(run, store, monkeypatch, caplog):
    append(run, 0)
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with Mirror(run, tags={}) as mirror:
        mirror.notify()
    assert "MLflow does not have all of run r" in caplog.text
    mlflow.set_tracking_uri(store.tracking_uri)
    append(run, 1)
    with Mirror(run, tags={}) as mirror:
        mirror.notify()
    assert sorted(steps(store, run)) == [0, 1]
