"""What Prefect, Parquet, the manifests and MLflow cost together, as a share of an iteration of about ten seconds.

A real run of the flow with a server of its own, as `trace train` makes it; every iteration is timed from outside.
Whatever is not computation counts: what an iteration takes beyond its stages (Prefect, the loop), and within them the
time spent in reading and writing Parquet, turning nodes into tables and back, hashing, synchronising to disk and
MLflow. Medians over the iterations after the first.

Two clocks: wall time, which a user waits for and other programs on the machine disturb, and the CPU time of the main
thread, which computes. In the second, all that the process's other threads take (MLflow's mirror, Prefect's client)
counts as a cost.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.orchestration
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ["OMP_NUM_THREADS"] = "1"

from bench.results import record
from flows import services
from flows.temporary_server import prefect_api

UNITS = 2816


def main(iterations: int = 6) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ |= services.environment(root)
        os.environ |= {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", "MLFLOW_LOGGING_LEVEL": "WARNING"}
        os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_uri(root)
        with prefect_api(root) as api:
            api.wait()
            record(measure(root, iterations))


def measure(root: Path, iterations: int) -> dict[str, float]:
    """Runs the flow and returns the figures."""
    import mlflow
    import pyarrow.parquet as pq

    from components import storage
    from components.tree import schema

    spent: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))  # by what, on the two clocks
    main_thread, inside = threading.main_thread(), [False]

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not main_thread or inside[0]:  # others run beside the iteration
                return function(*args, **kwargs)
            inside[0], begin = True, now()
            try:
                return function(*args, **kwargs)
            finally:
                spent[what] = spent[what] + now() - begin
                inside[0] = False

        return wrapper

    pq.write_table, storage.read_parquet = timed("Parquet", pq.write_table), timed("Parquet", storage.read_parquet)
    for name in ("nodes_to_table", "table_to_nodes", "with_columns"):
        setattr(schema, name, timed("tables", getattr(schema, name)))
    hashlib.file_digest = timed("hashes", hashlib.file_digest)
    os.fsync = timed("synchronising", os.fsync)
    for method in ("log_batch", "log_artifact", "log_figure"):
        setattr(mlflow.MlflowClient, method, timed("MLflow", getattr(mlflow.MlflowClient, method)))

    import tasks.stage  # which takes the functions above by name
    from flows.train import trace

    marks: list[tuple[np.ndarray, float, dict[str, np.ndarray]]] = []
    began: dict[str, np.ndarray] = {}

    class Clock:
        def stage(self, name: str, done: int, total: int, shard: tuple[int, int] = (0, 1)) -> None:
            began.setdefault(name, now())

        def iteration(self, line: dict[str, Any]) -> None:
            marks.append((now(), time.process_time(), spent.copy()))
            began.clear()

    def end_stage(path: Path, value: dict[str, Any]) -> None:
        """Writes a manifest, which ends the stage that it names last."""
        spent["stages"] = spent["stages"] + now() - began[list(value)[-1]]
        storage.write_sealed(path, value)

    tasks.stage.write_sealed = end_stage  # type: ignore[attr-defined]
    tasks.stage.listeners.append(Clock())
    overrides = {
        "run.runs_dir": str(root / "runs"),
        "run.data_dir": str(root / "data"),
        "run.iterations": iterations,
        "allocation.root_units": UNITS // 2,
        "allocation.pool": 512,
    }
    empty = root / "params.yaml"
    storage.write_text(empty, "{}\n")
    trace(params=str(empty), overrides=overrides, run_id="bench")
    rows = []
    for (start, cpu, before), (end, cpu_after, after) in itertools.pairwise(marks):
        costs = {what: after[what] - before.get(what, 0.0) for what in after}
        costs["Prefect and the loop"] = end - start - costs.pop("stages")
        costs["other threads"] = np.array([0.0, cpu_after - cpu - (end - start)[1]])
        rows.append(costs | {"iteration": end - start})
    for what in sorted(rows[0], key=lambda what: -rows[0][what][1]):
        wall, cpu = np.median([row[what] for row in rows], axis=0)
        print(f"  {what:24} {wall:7.3f} s {cpu:7.3f} CPU s an iteration")
    shares = [sum(t for what, t in row.items() if what != "iteration") / row["iteration"] for row in rows]
    wall, cpu = np.median([row["iteration"] for row in rows], axis=0)
    share, cpu_share = np.median(shares, axis=0)
    return {
        "orchestration_share": share,
        "orchestration_cpu_share": cpu_share,
        "orchestration_iteration_s": wall,
        "orchestration_iteration_cpu_s": cpu,
    }


def now() -> np.ndarray:
    """Wall and CPU seconds of this thread; (2,)."""
    return np.array([time.perf_counter(), time.thread_time()])


if __name__ == "__main__":
    main()
