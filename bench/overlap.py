"""What shards win where tools are slow, and what a task costs: an iteration at 1, 4 and 16 shards.

Every step of the environment takes 50 ms, as a search server's does, and steps are taken one after the other, as they
are for engines that sample in turn. There are 16 active prompts, so 16 shards are one for each. Times are of the whole
iteration without its evaluation, through Prefect, and all of one process; `overlap_speedup_slow_tools` is the median
over seeds of time at 1 shard over time at 16.

`overlap_seconds_per_task` is the wall time of 64 shards that have nothing left to do, over their 321 task runs: what
Prefect and the manifests cost.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from flows import services
from flows.temporary_server import prefect_api

SEEDS, SHARDS, STEP_SECONDS = range(5), (1, 4, 16), 0.05
MANY = 64

os.environ.update(services.environment(Path(tempfile.gettempdir()) / "trace-bench-overlap"))
os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def main() -> None:
    root = Path(tempfile.gettempdir()) / "trace-bench-overlap"
    with prefect_api(root) as api:
        api.wait()
        from bench.results import record

        with tempfile.TemporaryDirectory() as folder:
            record(slow_tools(Path(folder)) | overhead(Path(folder)))
    shutil.rmtree(root)


def settings(folder: Path, seed: int, shards: int, **allocation: Any) -> Any:
    from components.params.root import compose

    return compose(
        {
            "run": {"iterations": 1, "seed": seed, "runs_dir": str(folder / "runs"), "data_dir": "data"},
            "environment": {"val_prompts": 1},
            "engine": {"shards": shards},
            "allocation": {"pool": 32, "root_units": 32, "max_per_prompt": 2, **allocation},
            "evaluation": {"samples": 1},
            "tracking": {"mlflow": False},
        }
    )


def slow_tools(folder: Path) -> dict[str, float]:
    from components.environments.multihop import MultiHop
    from flows.train import trace
    from tasks.prepare import warm_up_policy
    from tasks.run import open_run

    quick = MultiHop.step

    def slow(self: MultiHop, state: Any, action: str) -> Any:
        time.sleep(STEP_SECONDS)
        return quick(self, state, action)

    warm_up_policy.fn(open_run(settings(folder, 0, 1), "warm-up").path)
    MultiHop.step = slow  # type: ignore[method-assign]
    seconds: dict[int, list[float]] = {shards: [] for shards in SHARDS}
    try:
        for seed in SEEDS:
            for shards in SHARDS:
                run = open_run(settings(folder, seed, shards), f"slow-{seed}-{shards}")
                trace(params=str(run.path / "params.yaml"), run_id=run.run_id)
                line = run.metrics()[0]
                seconds[shards].append(line["time/iteration"] - line["time/evaluate"])
                print(f"seed {seed}, {shards} shards: {seconds[shards][-1]:.2f} s", flush=True)
    finally:
        MultiHop.step = quick  # type: ignore[method-assign]
    numbers = {f"overlap_iteration_s_{shards}_shards": statistics.median(seconds[shards]) for shards in SHARDS}
    speedups = [one / many for one, many in zip(seconds[1], seconds[SHARDS[-1]], strict=True)]
    return numbers | {"overlap_speedup_slow_tools": statistics.median(speedups)}


def overhead(folder: Path) -> dict[str, float]:
    """At the embedded task itself, whose tools take no time: 64 shards, and the same again with nothing left to do."""
    from prefect import flow

    from flows.shards import side_by_side
    from flows.train import grow
    from tasks.prepare import warm_up_policy
    from tasks.run import open_run
    from tasks.sample import allocate_roots
    from tasks.score import score_prompts
    from tasks.shards import shards_of

    @flow(name="overhead")
    def timed(run: Path, policy: Path) -> list[float]:
        roots = allocate_roots(run, 0, scored=score_prompts(run, 0, policy=policy, predictor=None))
        times = []
        for _ in range(6):
            begin = time.perf_counter()
            side_by_side(grow, run, 0, policy=policy, predictor=None, roots=roots)
            times.append(time.perf_counter() - begin)
        return times

    numbers = {}
    for shards in (1, MANY):
        params = settings(folder, 0, shards, pool=128, root_units=2 * MANY)
        run = open_run(params, f"overhead-{shards}")
        first, *again = timed(run.path, warm_up_policy.fn(run.path))
        count = len(shards_of(run, 0))
        numbers[f"overlap_rollouts_s_{shards}_shards_quick_tools"] = first
        print(f"{count} shards: {first:.2f} s, then with nothing to do {again}", flush=True)
    numbers["overlap_seconds_per_task"] = statistics.median(again) / (5 * count + 1)
    return numbers


if __name__ == "__main__":
    main()
