"""Two real workers of one pool, each as on a machine of its own: two runs at once, and one that outlives its worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from components.params.root import Params
from flows import services
from flows.services import HOST, Service, end, free_port, launch, wait_for
from tasks import store
from tasks.run import find_run
from tasks.stage import read_stages
from tests.tasks.pipeline import fingerprints

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 600.0  # seconds, for a busy machine
pytestmark = pytest.mark.slow


@pytest.fixture
def machines(tmp_path: Path, params: Params, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders that share nothing but a Prefect server, with a worker in each."""
    for key in [key for key in os.environ if key.startswith(("PREFECT_", "MLFLOW_"))]:
        monkeypatch.delenv(key)
    roots = tmp_path / "a", tmp_path / "b"
    for root in roots:
        root.mkdir()
        for name in ("flows", "tasks", "components", "prefect.yaml"):
            (root / name).symlink_to(REPOSITORY / name)
        (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump()))
    monkeypatch.setenv("PREFECT_API_URL", f"http://{HOST}:{free_port()}/api")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    started: list[Service] = []

    def start(name: str, root: Path, *command: str) -> Service:
        env = services.server_environment(root) if name == "server" else {**os.environ, **services.environment(root)}
        command = (sys.executable, "-m", "prefect", *command)
        started.append(launch(name, command, env | {"PWD": str(root)}, root, tmp_path / f"{name}.log"))
        return started[-1]

    try:
        port = os.environ["PREFECT_API_URL"].rpartition(":")[2].partition("/")[0]
        server = start("server", tmp_path, "server", "start", "--host", HOST, "--port", port)
        wait_for(_api("health"), server, timeout=PATIENCE)
        command = ["worker", "start", "--pool", "local", "--type", "process", "--limit", "1", "--name"]
        for root in roots:  # the first makes the pool
            worker = start(root.name, root, *command, root.name)
            wait_for(_api("work_pools/local"), worker, timeout=PATIENCE)
        _prefect(roots[0], "--no-prompt", "deploy", "--all")
        yield roots
    finally:
        for service in reversed(started):
            end(service)
        store._readable.clear()


def _api(path: str) -> str:
    return f"{os.environ['PREFECT_API_URL']}/{path}"


def _ask(path: str, **query: Any) -> Any:
    request = urllib.request.Request(_api(path), json.dumps(query).encode(), {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        return json.load(response)


def _prefect(root: Path, *command: str) -> None:
    env = {**os.environ, **services.environment(root), "PWD": str(root)}
    subprocess.run([sys.executable, "-m", "prefect", *command], cwd=root, env=env, check=True, timeout=PATIENCE)


def _submit(root: Path, run_id: str, **overrides: object) -> None:
    parameters = {"run_id": run_id, "overrides": overrides}
    _prefect(root, "deployment", "run", "trace/train", "--params", json.dumps(parameters))


def _until(what: str, ready: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    ended = {"flow_runs": {"state": {"type": {"any_": ["FAILED", "CRASHED"]}}}}
    while not (found := ready()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        assert not (failed := _ask("flow_runs/filter", **ended)), [run["state"]["message"] for run in failed]
        time.sleep(0.5)
    return found


def test_two_workers_run_two_runs_and_one_continues_what_the_other_was_killed_in(machines, tmp_path):
    url = f"file://{tmp_path}/store"
    _submit(machines[0], "first", **{"run.store": url})
    _submit(machines[0], "second", **{"run.store": url, "run.cluster": "local"})

    def where(run_id: str) -> Path | None:
        return next((root for root in machines if (root / "runs" / run_id / "manifest.json").exists()), None)

    doomed = _until("the first run", lambda: where("first"))
    other = _until("the second run", lambda: where("second"))
    assert doomed != other  # both at once, for no worker takes a second one
    _until("a verified stage", lambda: "verify_factual" in read_stages(tmp_path / "store/first/iterations/0000"))
    worker = next(p for p in psutil.Process().children() if ["--name", doomed.name] == p.cmdline()[-2:])
    for process in [worker, *worker.children(recursive=True)]:
        process.kill()
    (doomed / "runs").rename(tmp_path / "gone")
    lease = tmp_path / "store/first/.lease"
    lease.write_text(json.dumps(json.loads(lease.read_text()) | {"time": 0.0}))  # instead of 180 s

    _submit(other, "first", **{"run.store": url})
    runs = {run_id: other / "runs" / run_id for run_id in ("first", "second")}
    _until("the ends", lambda: all((path / "summary.json").exists() for path in runs.values()))
    before, after = (read_stages(path / "iterations/0000") for path in (tmp_path / "gone/first", runs["first"]))
    assert after["verify_factual"]["seconds"] == before["verify_factual"]["seconds"]  # what was paid for is kept
    whole = {
        run_id: _until(run_id, lambda run_id=run_id: _whole(f"{url}/{run_id}", tmp_path / "read")) for run_id in runs
    }
    assert whole["first"] == whole["second"]
    assert len(_ask("task_runs/filter", task_runs={"name": {"like_": "verify chunk"}})) >= 4


def _whole(url: str, folder: Path) -> dict[str, str] | None:
    """Content hashes of all that the store keeps of a run; None while it is still held."""
    run = find_run(url, folder)
    if store._readable[run.path].fs.exists(".lease"):
        return None
    for manifest in run.path.glob("iterations/*/manifest.json"):
        for entry in read_stages(manifest.parent).values():
            for name, expected in entry["outputs"].items():
                store.has_hash(manifest.parent / name, expected)
    return fingerprints(run)
