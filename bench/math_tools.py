"""What verification and tool calls cost: verifications a second and their 99th percentile, tool calls a second.

Everything runs through one worker. Answers are half right and half wrong, and none equals its gold answer as a text.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.math_tools FILE...   (files of problems, e.g. of MATH-500)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.math_gold import corrupt
from bench.results import record
from components.environments.math.problems import generate_reasoning, load_math
from components.environments.math.python_tool import ConfinedPython, SandboxedPython
from components.workers.pool import Workers

CODE = "total = 0\nfor n in range(1, 200):\n    if n % 3 == 0 or n % 5 == 0:\n        total += n\nprint(total)"


def clock(run: Callable[[object], object], tasks: list[object]) -> np.ndarray:
    """Seconds of each task, (N,)."""
    seconds = np.empty(len(tasks))
    for index, task in enumerate(tasks):
        begin = time.perf_counter()
        run(task)
        seconds[index] = time.perf_counter() - begin
    return seconds


def main(paths: list[str]) -> None:
    problems = [p for path in paths for p in load_math(Path(path))] or generate_reasoning(0, 500)
    pairs: list[object] = [
        [p.answer, f"{corrupt(p.answer) if index % 2 else p.answer} "] for index, p in enumerate(problems)
    ]
    with Workers("components.environments.math.grade_math:grade", timeout=10.0, cpu=1.0) as workers:
        workers.run(pairs[0])
        seconds = clock(workers.run, pairs)
    record(
        {
            "math_verifications_per_s": 1 / seconds.mean(),
            "math_verification_p50_s": float(np.quantile(seconds, 0.5)),
            "math_verification_p99_s": float(np.quantile(seconds, 0.99)),
            "math_verification_max_s": float(seconds.max()),
        }
    )
    for name, tool, count in (
        ("sandboxed", SandboxedPython(count=1), 2000),
        ("confined", ConfinedPython(count=1), 200),
    ):
        tool.run(CODE)
        seconds = clock(tool.run, [CODE] * count)
        record(
            {
                f"python_{name}_calls_per_s": 1 / seconds.mean(),
                f"python_{name}_p99_s": float(np.quantile(seconds, 0.99)),
            }
        )


if __name__ == "__main__":
    main(sys.argv[1:])
