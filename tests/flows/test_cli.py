"""The command line as a user meets it: a real process, a real temporary Prefect server, real files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from components.params.root import Params
from components.storage import content_hash


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "MLFLOW", "COLUMNS"))}
    return kept | {"COLUMNS": "120", "NO_COLOR": "1", **extra}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *arguments]


def trace(project: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=project, env=environment(**extra), capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def project(params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with params.yaml, as a clone is."""
    folder = tmp_path_factory.mktemp("project")
    tree = params.model_dump() | {"tracking": {"mlflow": True, "experiment": "trace"}}
    (folder / "params.yaml").write_text(yaml.safe_dump(tree))
    return folder


@pytest.fixture(scope="module")
def first(project: Path) -> subprocess.CompletedProcess[str]:
    return trace(project, "train", "--run-id", "first")


def metrics(project: Path, run_id: str) -> list[dict]:
    return [json.loads(line) for line in (project / "runs" / run_id / "metrics.jsonl").read_text().splitlines()]


def fingerprints(project: Path, run_id: str) -> dict[str, str]:
    folder = project / "runs" / run_id / "iterations"
    files = sorted(
        p for p in folder.glob("*/*") if p.name not in ("manifest.json", "metrics.json", "report.html", "trees.html")
    )
    return {str(p.relative_to(folder)): content_hash(p) for p in files}


def test_train_shows_progress_a_table_and_where_to_look(first):
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""  # no stray traceback, no warning
    lines = [line for line in first.stdout.splitlines() if "effective ratio" in line]
    assert len(lines) == 3  # two iterations and the table's row
    for word in ("accuracy on held-out prompts", "units =", "metrics.jsonl", "trace evaluate first", "make up"):
        assert word in first.stdout


def test_run_is_on_disk_as_documented(project, first):
    folder = project / "runs" / "first"
    assert (project / "runs" / "latest").resolve() == folder.resolve()
    names = {"params.yaml", "manifest.json", "metrics.jsonl", "summary.json", "report.html", "iterations"}
    assert {p.name for p in folder.iterdir()} >= names
    assert [line["iteration"] for line in metrics(project, "first")] == [0, 1]
    assert json.loads((folder / "summary.json").read_text())["accuracy/last"] >= 0


def test_prefect_has_a_readable_run_per_iteration_and_a_task_run_per_task(project, first):
    database = project / ".trace" / "prefect" / "prefect.db"
    import sqlite3

    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        flows = {name: state for name, state in connection.execute("select name, state_type from flow_run")}
        assert {f"first-{k:04d}": "COMPLETED" for k in (0, 1)}.items() <= flows.items()
        assert flows["first"] == "COMPLETED"
        rows = connection.execute(
            "select t.name from task_run t join flow_run f on t.flow_run_id = f.id where f.name = 'first-0001'"
        )
        names = {name for (name,) in rows}
        artifacts = connection.execute("select count(*) from artifact").fetchone()[0]
        key = "select data from artifact where key = 'first-iterations'"
        table = json.loads(json.loads(connection.execute(key).fetchone()[0]))
    wanted = {"score prompts", "allocate roots", "generate", "expand prefixes", "refit predictor", "update policy"}
    assert names >= wanted | {"verify factual", "verify counterfactual", "evaluate", "record"}
    assert artifacts == 2 + 1 + 1  # one an iteration, the run's, and its report
    assert [row["iteration"] for row in table] == [0, 1]


def test_mlflow_mirrors_the_metrics_under_the_manifests_run_id(project, first):
    code = (
        "import json, mlflow, sys; run = mlflow.MlflowClient().get_run(sys.argv[1]); history = "
        "mlflow.MlflowClient().get_metric_history(sys.argv[1], 'budget/units'); print(json.dumps("
        "[run.info.status, run.info.run_name, run.data.params, sorted(m.step for m in history), "
        "[f.path for f in mlflow.MlflowClient().list_artifacts(sys.argv[1])]]))"
    )
    run_id = json.loads((project / "runs" / "first" / "manifest.json").read_text())["mlflow_run_id"]
    uri = f"sqlite:///{project}/.trace/mlflow/mlflow.db"
    out = subprocess.run(
        [sys.executable, "-c", code, run_id],
        env=environment(MLFLOW_TRACKING_URI=uri, MLFLOW_DISABLE_TELEMETRY="true"),
        capture_output=True,
        text=True,
        check=True,
    )
    status, name, logged, steps, artifacts = json.loads(out.stdout.splitlines()[-1])
    assert (status, name, steps) == ("FINISHED", "first", [0, 1])
    assert logged["allocation.arm"] == "trace"
    assert set(artifacts) >= {"params.yaml", "metrics.jsonl", "summary.json", "report.html", "trees.html"}


def test_other_parameters_under_the_same_id_are_refused_before_anything_starts(project, first):
    before = fingerprints(project, "first")
    start = time.monotonic()
    out = trace(project, "train", "--run-id", "first", "--seed", "9")
    assert out.returncode == 2
    assert "run.seed is 0 there and 9 here" in out.stderr
    assert len(out.stderr.strip().splitlines()) == 1
    assert time.monotonic() - start < 10
    assert fingerprints(project, "first") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--params", "none.yaml"], "none.yaml: no such parameters file"),
        (["train", "--set", "allocation.root_unit=3"], "allocation.root_unit=3: no such key"),
        (["train", "--set", "root_units=3"], "expected section.key=value"),
        (["train", "--arm", "best"], "arm='best' is not known"),
        (["train", "--run-id", "../elsewhere"], "use up to 100 letters"),
        (["train", "--set", "policy.path=nowhere"], "policy.path='nowhere': no config.json there"),
        (["train", "--set", "engine.name=vllm", "--set", "policy.hidden=128"], "set up vLLM with: make vllm"),
        (["train", "--set", "run.runs_dir=/proc/runs"], "/proc/runs"),
        (["evaluate", "nothing"], "no run 'nothing' in runs/"),
        (["up", "--prefect-port", "BUSY"], "is in use"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(project, first, arguments, message):
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        out = trace(project, *(str(busy.getsockname()[1]) if a == "BUSY" else a for a in arguments))
    assert out.returncode == 2, out.stdout + out.stderr
    assert message in out.stderr
    assert "Traceback" not in out.stderr + out.stdout
    assert len(out.stderr.strip().splitlines()) == 1


def test_killed_run_continues_with_the_same_command(project, first):
    arguments = ["train", "--run-id", "killed"]
    process = subprocess.Popen(
        command(*arguments), cwd=project, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True
    )
    marker = project / "runs" / "killed" / "iterations" / "0001" / "scored.parquet"
    deadline = time.monotonic() + 600
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(metrics(project, "killed")) == 1
    out = trace(project, *arguments)
    assert out.returncode == 0, out.stderr
    assert [line["iteration"] for line in metrics(project, "killed")] == [0, 1]
    assert fingerprints(project, "killed") == fingerprints(project, "first")


def test_interrupt_says_how_to_go_on(project, first):
    process = subprocess.Popen(
        command("train", "--run-id", "stopped"),
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    marker = project / "runs" / "stopped" / "iterations" / "0000" / "roots.parquet"
    deadline = time.monotonic() + 600
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, out + err
    assert "trace train --run-id stopped" in out
    assert "Traceback" not in out + err


def test_two_processes_cannot_write_one_run(project, first):
    from tasks.run import Run, lock

    with lock(Run(project / "runs" / "first")):
        out = trace(project, "train", "--run-id", "first")
    assert out.returncode == 2
    assert "is being written by another process" in out.stderr


def test_evaluate_compares_with_the_start(project, first):
    out = trace(project, "evaluate", "first", "--samples", "1")
    assert out.returncode == 0, out.stderr
    assert "the policy that the run started from: accuracy" in out.stdout
    assert "after 2 iterations: accuracy" in out.stdout


def test_tracking_failure_never_stops_training(project, first):
    away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    away |= {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}  # nor does a proxy for the outside
    out = trace(project, "train", "--run-id", "untracked", **away)
    assert out.returncode == 0, out.stderr
    assert len(metrics(project, "untracked")) == 2
    assert "MLflow does not have all of run untracked" in out.stdout + out.stderr


def test_doctor_names_what_is_missing_and_how_to_get_it(project):
    out = trace(project, "doctor")
    assert out.returncode == 0
    assert "torch" in out.stdout
    assert re.search(r"make\s+vllm", out.stdout)  # a narrow table wraps


def test_help_lists_the_commands():
    out = subprocess.run(command("--help"), capture_output=True, text=True, env=environment())
    assert all(name in out.stdout for name in ("train", "evaluate", "up", "down", "doctor"))
