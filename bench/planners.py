"""Times and checks the planners; adds flat name -> number entries to bench/results.json.

Run from the repository: python -m bench.planners
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bench.results import record
from components.allocation.anchors import Anchors, Belief
from components.allocation.budget import Budget
from components.allocation.prefixes import plan_prefixes
from components.allocation.roots import plan_roots
from components.allocation.utilities import root_utility
from components.simulation import NoisyPredictor, Population, sweep
from flows.simulate import MAIN_ARMS
from tests.components.allocation.roots_dp import plan_roots_dp


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Best wall time of a few."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def pool(prompts: int, concentration: float = np.inf) -> Belief:
    """Success rates from a U-shaped distribution."""
    return Belief(np.random.default_rng(0).beta(0.2, 0.2, prompts), np.full(prompts, concentration))


def roots() -> dict[str, float]:
    """Time against the size of the pool, M = P, on point and Beta beliefs, and where all prompts are equal."""
    numbers = {}
    for exponent in (3, 4, 5, 6):
        prompts = 10**exponent
        numbers[f"plan_roots_1e{exponent}_s"] = seconds(partial(plan_roots, pool(prompts), prompts))
    beta, equal = pool(10**6, 4.0), Belief.ignorant(10**6)
    numbers["plan_roots_1e6_beta_s"] = seconds(partial(plan_roots, beta, 10**6))
    numbers["plan_roots_1e6_equal_s"] = seconds(partial(plan_roots, equal, 10**6))
    return numbers


def peak() -> None:
    """Plans a million prompts and prints this process's peak memory in MB, imports included."""
    plan_roots(pool(10**6), 10**6)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def mismatches(instances: int = 10_000) -> int:
    """Random instances, with and without cap, on which the planner's value differs from the dynamic programme's."""
    rng, wrong = np.random.default_rng(1), 0
    for index in range(instances):
        prompts, budget, cap = int(rng.integers(1, 9)), int(rng.integers(0, 25)), (None, 2, 3, 5)[rng.integers(4)]
        grid = rng.choice([0.0, 0.1, 0.25, 0.5, 0.75, 1.0], prompts)
        mean = grid if index % 3 == 0 else rng.beta(0.3, 0.3, prompts)
        concentration = np.full(prompts, np.inf) if index % 2 else rng.choice([0.1, 1.0, 10.0, 1e6], prompts)
        belief = Belief(mean, concentration)
        mine, best = plan_roots(belief, budget, cap, rng), plan_roots_dp(belief, budget, cap)
        gap = root_utility(belief, mine).sum() - root_utility(belief, best).sum()
        wrong += int(mine.sum() != best.sum() or abs(gap) > 1e-12)
    return wrong


def prefixes() -> dict[str, float]:
    """100,000 anchors in 10,000 trees, six continuations each."""
    rng, trees, per_tree = np.random.default_rng(2), 10_000, 10
    size = trees * per_tree
    passed = (rng.random(size) < 0.5).astype(np.int64)
    numbers = {}
    for name, concentration in (("", np.inf), ("_beta", 4.0)):
        anchors = Anchors(
            node_A=np.arange(size),
            tree_A=np.repeat(np.arange(trees), per_tree),
            turn_A=np.tile(np.arange(per_tree), trees),
            successes_A=passed,
            failures_A=1 - passed,
            belief=Belief(rng.beta(0.3, 0.3, size), np.full(size, concentration)),
            surprisal_A=np.full(size, np.nan),
            suffix_tokens_A=np.full(size, np.nan),
        )
        budget = np.full(trees, 6)
        numbers[f"plan_prefixes_1e5{name}_s"] = seconds(partial(plan_prefixes, anchors, budget))
    return numbers


def simulation() -> dict[str, float]:
    """The default command at a million prompts (CPU seconds, MB), and every arm in the paper's regime, ten seeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "flows.cli", "simulate", "--pool", "1000000"]
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    numbers = {
        "simulate_1e6_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "simulate_1e6_mb": after.ru_maxrss / 1024,  # of the largest child so far: this one
    }
    population, flat = Population.with_mixed_share(0.23), Budget(4096, 2, 8)  # a pool four times its 1024 groups
    cells = {arm: (arm, flat, 2.0) for arm in MAIN_ARMS.split(",")}
    for noise, suffix in ((2.0, ""), (0.0, "-perfect")):
        cells |= {f"pcl{suffix}": ("pcl", flat, noise), f"roots-only{suffix}": ("trace", Budget(8192, 0, 8), noise)}
    for name, (arm, budget, noise) in cells.items():
        (cell,) = sweep([arm], [budget], [4096], [NoisyPredictor(noise)], population, seeds=10)
        key = f"simulate_{name.replace('-', '_')}"
        for number in ("effective_ratio", "squared_gradient"):
            numbers[f"{key}_{number}"] = cell.mean(number)
        numbers[f"{key}_effective_ratio_margin"] = cell.margin("effective_ratio")
    return numbers


def main() -> None:
    numbers = roots()
    child = subprocess.run(
        [sys.executable, "-m", "bench.planners", "peak"],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    numbers["plan_roots_1e6_mb"] = float(child.stdout)
    numbers["plan_roots_mismatches"] = float(mismatches())
    numbers |= prefixes() | simulation()
    record(numbers)


if __name__ == "__main__":
    peak() if sys.argv[1:] == ["peak"] else main()
