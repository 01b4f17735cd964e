"""A day of training compressed: thousands of tiny iterations, and what grows meanwhile.

After every iteration the process's memory, what of it is in use, and open files are read, and the time since the one
before, which holds everything: the stages, metrics, retention, and MLflow's mirror in its thread. `--prefect` has
Prefect run the flow, against a temporary server, which takes several times as long.

Run from the repository: OMP_NUM_THREADS=1 nice -n 19 python -m bench.load [--prefect] [iterations] [folder]
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import yaml

from bench.results import record

SETTINGS = {
    "environment": {"train_prompts": 32, "val_prompts": 2, "test_prompts": 2, "hops": {1: 1.0}},
    "policy": {"layers": 1, "hidden": 32, "warmup": {"steps": 150, "batch_size": 32, "hops": {1: 1.0}}},
    "allocation": {"pool": 4, "root_units": 4, "continuations": 2, "group_size": 2},
    "predictor": {"steps": 2, "hidden": 8},
    "update": {"epochs": 1, "minibatches": 1},
    "evaluation": {"samples": 1, "every": 10},
}


COLUMNS = ("seconds", "memory_mb", "open_files", "threads", "cpu_seconds", "heap_mb", "python_blocks")


class Heap(ctypes.Structure):
    """What `mallinfo2` of the C library returns: bytes in use are `uordblks` and `hblkhd`."""

    _names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _names]


class Readings:
    """Listens to the run; one row of `COLUMNS` an iteration.

    `memory_mb` is resident: with what the allocators hold for later. `heap_mb` is what is in use of the C heap, where
    arrays and tensors are, and `python_blocks` counts the objects of Python's own allocator.
    """

    def __init__(self, file: Path) -> None:
        self.process, self.last, self.file = psutil.Process(), time.perf_counter(), file
        self.heap = ctypes.CDLL("libc.so.6").mallinfo2
        self.heap.restype = Heap
        self.rows: list[list[float]] = []

    def stage(self, name: str, done: int, total: int, shard: tuple[int, int] = (0, 1)) -> None:
        pass

    def iteration(self, line: dict[str, Any]) -> None:
        now, process = time.perf_counter(), self.process
        memory, heap = process.memory_info().rss, self.heap()
        self.rows.append(
            [
                now - self.last,
                memory / 2**20,
                process.num_fds(),
                process.num_threads(),
                _cpu(process),
                (heap.uordblks + heap.hblkhd) / 2**20,
                sys.getallocatedblocks(),
            ]
        )
        self.last = now
        with self.file.open("a") as stream:
            stream.write(" ".join(f"{x:.4f}" for x in self.rows[-1]) + "\n")


def main(iterations: int, root: Path, prefect: bool) -> None:
    root.mkdir(parents=True, exist_ok=True)
    os.chdir(root)
    Path("params.yaml").write_text(yaml.safe_dump(SETTINGS | {"run": {"iterations": iterations}}))
    from flows import services
    from flows.temporary_server import prefect_api

    os.environ.update(services.environment(root))
    os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_uri(root)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    readings = Readings(root / "readings.txt")
    with prefect_api(root) if prefect else tempfile.TemporaryDirectory() as api:
        if prefect:
            api.wait()
        from tasks.stage import listeners

        listeners.append(readings)
        if prefect:
            from flows.train import trace
        else:
            from tests.faults.attempts import plain_flow

            trace = plain_flow()
        run = Path(trace(params="params.yaml", run_id="load"))
    record(figures(np.array(readings.rows), run, "load_prefect" if prefect else "load"))


def figures(rows: np.ndarray, run: Path, name: str) -> dict[str, float]:
    """Medians of the second and the last tenth (the first fills caches), and slopes with their standard errors."""
    part = max(1, len(rows) // 10)
    early, late = rows[part : 2 * part], rows[-part:]
    numbers = {f"{name}_iterations": float(len(rows))}
    for column, what in enumerate(COLUMNS):
        numbers[f"{name}_{what}_early"] = float(np.median(early[:, column]))
        numbers[f"{name}_{what}_late"] = float(np.median(late[:, column]))
    slopes = ("memory_mb", "memory_kb", 1024), ("heap_mb", "heap_kb", 1024), ("python_blocks", "python_blocks", 1)
    for what, kind, scale in slopes:
        key = f"{name}_{kind}_per_iteration"
        numbers[key], numbers[f"{key}_error"] = _slope(rows[part:, COLUMNS.index(what)] * scale)
    sizes = [f.stat().st_size for f in run.rglob("*") if f.is_file()]
    numbers[f"{name}_policies_kept"] = float(len(list(run.glob("iterations/*/policy"))))
    return numbers | {f"{name}_run_kb_per_iteration": sum(sizes) / 1024 / len(rows)}


def _slope(y: np.ndarray) -> tuple[float, float]:
    """Slope of a straight line and its standard error, from the means of 20 blocks (readings are not independent)."""
    blocks = np.array_split(np.arange(len(y)), min(20, len(y)))
    x, means = (np.array([v[block].mean() for block in blocks]) for v in (np.arange(len(y)), y))
    (slope, _), covariance = np.polyfit(x, means, 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of the process since the last call."""
    used = sum(process.cpu_times()[:2])
    before = getattr(process, "used", 0.0)
    process.used = used  # type: ignore[attr-defined]
    return used - before


if __name__ == "__main__":
    plain = [argument for argument in sys.argv[1:] if argument != "--prefect"]
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(plain[1]) if len(plain) > 1 else Path(temporary)
        main(int(plain[0]) if plain else 2000, where.absolute(), prefect=len(plain) < len(sys.argv) - 1)
