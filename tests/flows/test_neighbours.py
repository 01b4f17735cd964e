"""The Prefect server of `trace train` fails for real: slow, then gone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from components.errors import UserError
from components.params.root import Params
from flows.services import ServiceError
from flows.temporary_server import PrefectAPI
from tasks.run import Run
from tests.tasks.pipeline import fingerprints, new_run, train


def start(project: Path) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "MLFLOW", "COLUMNS"))}
    command = [sys.executable, "-m", "flows.cli", "train", "--run-id", "r"]
    environment = kept | {"COLUMNS": "120", "NO_COLOR": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=project, env=environment, stdout=pipe, stderr=pipe, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_run_goes_on_with_a_locked_database_and_a_killed_server(params: Params, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params.model_dump()))
    run = Run(tmp_path / "runs" / "r")
    process = start(tmp_path)
    wait_for(run.iteration(0) / "scored.parquet", process)
    with closing(sqlite3.connect(tmp_path / ".trace" / "prefect" / "prefect.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        time.sleep(8)
        database.execute("ROLLBACK")
    wait_for(run.iteration(1) / "scored.parquet", process)
    servers = [p for p in psutil.Process(process.pid).children() if "flows.temporary_server" in p.cmdline()]
    for server in servers:
        server.kill()
    out, err = process.communicate(timeout=480)
    assert len(servers) == 1
    assert (process.returncode, err) == (0, ""), out + err
    assert "Warning: the temporary Prefect server was killed; it is started again" in out
    assert [line["iteration"] for line in run.metrics()] == [0, 1]
    alone = new_run(params, tmp_path / "data", tmp_path / "alone")
    train(alone)
    kept = {k: v for k, v in fingerprints(run).items() if "/0002/" not in k}  # there the last evaluation lies
    assert kept.keys() >= {f"iterations/{k:04d}/{name}" for k in (0, 1) for name in ("forest.parquet", "policy")}
    assert kept.items() <= fingerprints(alone).items()


def test_error_is_the_servers_where_it_is_away_or_late_and_not_else(tmp_path: Path) -> None:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=server.serve_forever).start()
    api = PrefectAPI(tmp_path, f"http://127.0.0.1:{server.server_port}/api")
    late, other, told = httpx.ReadTimeout("late"), RuntimeError("a defect"), UserError("a wrong file")
    try:
        assert [api.is_to_blame(error) for error in (late, other, told)] == [True, False, False]
    finally:
        server.shutdown()
        server.server_close()
    assert [api.is_to_blame(error) for error in (late, other, told)] == [True, True, False]
    with pytest.raises(ServiceError, match="does not answer; start that server, or unset PREFECT_API_URL"):
        api.wait()
