"""A flow of the shape of `flows/train.py`, which does nothing: the deployment of the tests runs it."""

import os
import time
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.settings import temporary_settings


@task
def stage(path: str) -> None:
    get_run_logger().info("a line from %s", path)


@flow(name="iteration", flow_run_name="trace-{run_id}-{number:04d}")
def iteration(run_id: str, number: int) -> None:
    stage(f"{number}/first")
    stage(f"{number}/second")


@flow(name="trace")
def trace(seed: int = 0, run_id: str = "demo") -> None:
    Path(f"{run_id}.began").touch()
    while run_id == "held" and not Path("go.txt").exists():
        time.sleep(0.1)
    with temporary_settings({"flows.heartbeat_frequency": None}):
        for number in range(3):
            iteration(run_id, number)
    seen = (seed, Path.cwd(), os.environ["MLFLOW_TRACKING_URI"], os.environ["PREFECT_HOME"])
    Path("ran.txt").write_text(" ".join(map(str, seen)))
