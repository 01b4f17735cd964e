"""What Prefect, Parquet, the manifests and MLflow cost together, as a share of an iteration of about ten seconds.

A real run of the flow with a server of its own, as `trace train` makes it; every iteration is timed from outside.
Whatever is not computation counts: what an iteration takes beyond its stages (Prefect, the loop), and within them the
time spent in reading and writing Parquet, turning nodes into tables and back, hashing, synchronising to disk and
MLflow. Medians over the iterations after the first.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.orchestration
"""

from __future__ import annotations

import functools
import hashlib
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from bench.results import record
from flows import services

UNITS = 1536


def main(iterations: int = 6) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ |= services.environment(root)
        os.environ |= {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", "MLFLOW_LOGGING_LEVEL": "WARNING"}
        os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_uri(root)
        with services.prefect_api(root) as api:
            os.environ["PREFECT_API_URL"] = api.wait()
            record(measure(root, iterations))


def measure(root: Path, iterations: int) -> dict[str, float]:
    """Runs the flow and returns the figures."""
    import mlflow
    import pyarrow.parquet as pq

    from components.storage import write_text
    from components.tree.forest import Forest
    from flows.train import trace
    from tasks.stage import listeners, read_stages

    spent: Counter[str] = Counter()
    main_thread, inside = threading.main_thread(), [False]

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not main_thread or inside[0]:  # others run beside the iteration
                return function(*args, **kwargs)
            inside[0], begin = True, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[what] += time.perf_counter() - begin
                inside[0] = False

        return wrapper

    pq.read_table, pq.write_table = timed("Parquet", pq.read_table), timed("Parquet", pq.write_table)
    Forest.to_table = timed("tables", Forest.to_table)  # type: ignore[method-assign]
    Forest.from_table = classmethod(timed("tables", Forest.from_table.__func__))  # type: ignore[method-assign, attr-defined]
    hashlib.file_digest = timed("hashes", hashlib.file_digest)
    os.fsync = timed("synchronising", os.fsync)
    for method in ("log_batch", "log_artifact", "log_figure"):
        setattr(mlflow.MlflowClient, method, timed("MLflow", getattr(mlflow.MlflowClient, method)))

    marks: list[tuple[float, Counter[str]]] = []

    class Clock:
        def stage(self, name: str, done: int, total: int, shard: tuple[int, int] = (0, 1)) -> None: ...

        def iteration(self, line: dict[str, Any]) -> None:
            marks.append((time.perf_counter(), spent.copy()))

    listeners.append(Clock())
    overrides = {
        "run.runs_dir": str(root / "runs"),
        "run.data_dir": str(root / "data"),
        "run.iterations": iterations,
        "allocation.root_units": UNITS // 2,
        "allocation.pool": 512,
    }
    empty = root / "params.yaml"
    write_text(empty, "{}\n")
    run = Path(trace(params=str(empty), overrides=overrides, run_id="bench"))
    shares, walls = [], []
    table: Counter[str] = Counter()
    for number in range(1, len(marks)):
        wall = marks[number][0] - marks[number - 1][0]
        stages = sum(s["seconds"] for s in read_stages(run / f"iterations/{number:04d}").values())
        costs = marks[number][1] - marks[number - 1][1]
        costs["Prefect and the loop"] = wall - stages  # type: ignore[assignment]
        table += costs
        walls.append(wall)
        shares.append(costs.total() / wall)
    for what, seconds in table.most_common():
        print(f"  {what:24} {seconds / len(walls):.3f} s an iteration")
    return {"orchestration_share": statistics.median(shares), "orchestration_iteration_s": statistics.median(walls)}


if __name__ == "__main__":
    main()
