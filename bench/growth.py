"""How an iteration's stages grow: CPU seconds and peak memory against units, turns and the size of the pool.

Each point is the second iteration of a run of the embedded policy in a process of its own; another process has made its
prompts and the first policy before. Turns are forced: the environment asks on until the turn is reached, whatever the
policy does. An exponent is the slope of log time over log size between the two largest sizes whose stage takes at least
0.2 s; 1 is linear. Beside the stages stands what was asked of them, with exponents of its own: where the planner
branches is its choice, and so is how many tokens the continuations have; and attention reads, for each token, all
before it.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.growth [units] [turns] [pool]
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

os.environ["OMP_NUM_THREADS"] = "1"

from bench.results import record

if TYPE_CHECKING:
    from components.params.root import Params, compose

SIZES = {
    "units": (64, 256, 1024, 4096),
    "turns": (2, 4, 8, 16),
    "pool": (100, 1_000, 10_000, 100_000, 1_000_000),
}
LEAST = 0.2  # seconds from which a stage's growth is looked at
WORK = {
    "tokens": "tokens of the forest, each counted once",
    "continued": "those of them that stage 2 added",
    "attended": "pairs of a token and one that it sees",
}
BESIDE = {*WORK, "peak_mb"}  # rows that are no seconds


def settings(kind: str, size: int, folder: Path, prompts: int = 0) -> Params:
    """Parameters of a point; `prompts`, if given, is the number of those that the pool is drawn from."""
    from components.params.root import Params

    tree = Params().model_dump()
    tree["run"] |= {"runs_dir": str(folder / "runs"), "data_dir": str(folder / "data")}
    tree["allocation"] |= {"pool": 2048}
    if kind == "units":
        tree["allocation"] |= {"root_units": size // 2}
    elif kind == "turns":
        tree["engine"] |= {"max_tokens": 32 * size + 64}
    else:
        tree["allocation"] |= {"pool": size}
        tree["environment"] |= {"train_prompts": max(prompts or size, 4096)}
    return compose(tree)


def prepare(kind: str, size: int, folder: Path) -> dict[str, float]:
    """CPU seconds that the prompts took, and the process's `peak_mb`; the policy is trained here as well."""
    from components.environments.dataset import prepare
    from tasks.prepare import start_policy

    params, begin = settings(kind, size, folder), time.process_time()
    prepare(params.environment, Path(params.run.data_dir))
    seconds = time.process_time() - begin
    start_policy(params)
    return {"prepare_data": seconds, "peak_mb": peak_mb()}


def point(kind: str, size: int, folder: Path) -> dict[str, float]:
    """CPU seconds by stage of one iteration, what was asked of the stages, and `peak_mb` of the process."""
    import torch

    from bench.stages import iterate
    from components.environments import ENVIRONMENTS
    from components.environments.base import Prompt, Transition
    from components.environments.multihop import MultiHop
    from components.tree.schema import StopReason
    from tasks.prepare import prepare_data, start_policy
    from tasks.run import open_run

    @dataclass(frozen=True)
    class Asked:
        gold: str
        turn: int = 0

    class Insisting(MultiHop):
        """Answers any turn but the last with the same word; what was said last decides the outcome."""

        def reset(self, prompt: Prompt) -> Asked:  # type: ignore[override]
            return Asked(prompt.answer)

        def step(self, state: Asked, action: str) -> Transition:  # type: ignore[override]
            after = replace(state, turn=state.turn + 1)
            if after.turn < size:
                return Transition(after, observation="ann")
            answer = state.gold if crc32(action.encode()) % 2 else "nobody"
            return Transition(after, stop_reason=StopReason.ANSWERED, answer=answer)

    torch.set_num_threads(1)
    if kind == "turns":
        ENVIRONMENTS["multihop"] = lambda settings, cache: Insisting()
    run = open_run(settings(kind, size, folder), f"{kind}-{size}")
    prepare_data.fn(run.path)
    first = open_run(settings("pool", 2048, folder, prompts=size), f"first-{size}") if kind == "pool" else run
    policy, predictor, _ = iterate(first, 0, start_policy(run.params), None)
    if kind == "pool":  # whose first iteration is not looked at, and would take as long again
        shutil.copytree(first.iteration(0), run.iteration(0))
    seconds = iterate(run, 1, policy, predictor)[2]
    return seconds | work(run.iteration(1) / "forest.parquet") | {"peak_mb": peak_mb()}


def work(path: Path) -> dict[str, float]:
    """`WORK` of a forest."""
    from tasks.inputs import read_forest

    forest = read_forest(path)
    tokens, before = forest.tokens_N.tolist(), [0] * len(forest)
    for row, parent in enumerate(forest.parent_N.tolist()):
        before[row] = before[parent] + tokens[parent] if parent >= 0 else 0
    return {
        "tokens": float(sum(tokens)),
        "continued": float(forest.tokens_N[forest.is_counterfactual_N].sum()),
        "attended": float(sum(n * b + n * (n + 1) / 2 for n, b in zip(tokens, before, strict=True))),
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    seen = [(s, t) for s, t in zip(sizes, seconds, strict=True) if t >= LEAST]
    if len(seen) < 2:
        return None
    (s, t), (larger, longer) = seen[-2:]
    return log(longer / t) / log(larger / s)


def main(kinds: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            numbers: dict[str, float] = {}
            rows = []
            for size in SIZES[kind]:
                made, row = (_apart(what, kind, size, folder) for what in ("prepare", "point"))
                rows.append(row)
                numbers[f"growth_{kind}_{size}_cpu_s"] = sum(t for name, t in row.items() if name not in BESIDE)
                numbers[f"growth_{kind}_{size}_peak_mb"] = row["peak_mb"]
                if kind == "pool":
                    numbers[f"growth_prompts_{size}_cpu_s"] = made["prepare_data"]
                    numbers[f"growth_prompts_{size}_peak_mb"] = made["peak_mb"]
            print(f"{kind:22}" + "".join(f"{size:>10}" for size in SIZES[kind]) + "  exponent")
            worst = 0.0
            for name in rows[0]:
                values = [row[name] for row in rows]
                slope = exponent(SIZES[kind], values) if name != "peak_mb" else None
                if name not in BESIDE:
                    worst = max(worst, slope or 0.0)
                elif slope:
                    numbers[f"growth_{kind}_{name}_exponent"] = slope
                print(
                    f"{name:22}"
                    + "".join(f"{v:10.2f}" if v < 1e5 else f"{v:10.0f}" for v in values)
                    + (f"{slope:10.2f}" if slope else "")
                )
            record(numbers | {f"growth_{kind}_worst_exponent": worst})


def _apart(what: str, kind: str, size: int, folder: str) -> dict[str, float]:
    """What `prepare` or `point` gives, from a process of its own."""
    command = [sys.executable, "-m", "bench.growth", what, kind, str(size), folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(kind, size, what, {name: round(value, 2) for name, value in found.items()}, file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    if len(sys.argv) == 5:
        measure = {"prepare": prepare, "point": point}[sys.argv[1]]
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
    else:
        main(sys.argv[1:] or list(SIZES))
