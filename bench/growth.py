"""How an iteration's stages grow: CPU seconds and peak memory against units, turns and the size of the pool.

Each point is the second iteration of a run of the embedded policy in a process of its own. Turns are forced: the
environment asks on until the turn is reached, whatever the policy does. An exponent is the slope of log time over log
size between the two largest sizes whose stage takes at least 0.2 s; 1 is linear.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.growth
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from zlib import crc32

os.environ["OMP_NUM_THREADS"] = "1"

from bench.results import record

SIZES = {
    "units": (64, 256, 1024, 4096),
    "turns": (2, 4, 8, 16),
    "pool": (100, 1_000, 10_000, 100_000, 1_000_000),
}
COUNTS = 0.2  # seconds from which a stage's growth is looked at


def point(kind: str, size: int, folder: Path) -> dict[str, float]:
    """CPU seconds by stage of one iteration, and `peak_mb` of the process."""
    import torch

    from bench.stages import iterate
    from components.config import Params
    from components.environments import ENVIRONMENTS, Prompt, Transition
    from components.environments.multihop import MultiHop
    from components.tree.schema import StopReason
    from tasks.prepare import prepare_data, warm_up_policy
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
    tree = Params().model_dump()
    tree["run"] |= {"runs_dir": str(folder / "runs"), "data_dir": str(folder / "data")}
    tree["allocation"] |= {"pool": 2048}
    if kind == "units":
        tree["allocation"] |= {"root_units": size // 2}
    elif kind == "turns":
        tree["engine"] |= {"max_tokens": 32 * size + 64}
        ENVIRONMENTS["multihop"] = lambda settings, cache: Insisting()
    else:
        tree["allocation"] |= {"pool": size}
        tree["environment"] |= {"train_prompts": max(size, 4096)}
    run = open_run(Params.model_validate(tree), f"{kind}-{size}")
    prepare_data.fn(run.path)
    policy, predictor, _ = iterate(run, 0, warm_up_policy.fn(run.path), None)
    seconds = iterate(run, 1, policy, predictor)[2]
    return seconds | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def exponent(sizes: list[int], seconds: list[float]) -> float | None:
    seen = [(s, t) for s, t in zip(sizes, seconds, strict=True) if t >= COUNTS]
    if len(seen) < 2:
        return None
    (s, t), (larger, longer) = seen[-2:]
    return log(longer / t) / log(larger / s)


def main() -> None:
    numbers: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, sizes in SIZES.items():
            rows = []
            for size in sizes:
                command = [sys.executable, "-m", "bench.growth", kind, str(size), folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                numbers[f"growth_{kind}_{size}_cpu_s"] = sum(t for name, t in rows[-1].items() if name != "peak_mb")
                numbers[f"growth_{kind}_{size}_peak_mb"] = rows[-1]["peak_mb"]
            print(f"{kind:22}" + "".join(f"{size:>10}" for size in sizes) + "  exponent")
            worst = 0.0
            for name in rows[0]:
                values = [row[name] for row in rows]
                slope = exponent(list(sizes), values) if name != "peak_mb" else None
                worst = max(worst, slope or 0.0)
                print(f"{name:22}" + "".join(f"{v:10.2f}" for v in values) + (f"{slope:10.2f}" if slope else ""))
            numbers[f"growth_{kind}_worst_exponent"] = worst
    record(numbers)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(point(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        main()
