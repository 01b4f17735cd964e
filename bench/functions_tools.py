"""Speed of the function-calling environments, on gold paths: steps and scores per second of one core's time.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.functions_tools
"""

from __future__ import annotations

import statistics
import time
from itertools import islice

import numpy as np

from bench.results import record
from components.environments.base import Environment, Prompt
from components.environments.devices import Devices
from components.environments.functions import Functions
from components.environments.functions.prompts import MULTI_TURN, load_bfcl


def measure(environment: Environment, prompts: list[Prompt]) -> tuple[float, list[float]]:
    """Steps per second, resets included, and the seconds of each score."""
    steps, stepping, scoring = 0, 0.0, []
    for prompt in prompts:
        actions = environment.solve(prompt)
        begin = time.process_time()
        state = environment.reset(prompt)
        for action in actions:
            transition = environment.step(state, action)
            state, steps = transition.state, steps + 1
            if transition.done:
                break
        stepping += time.process_time() - begin
        begin = time.process_time()
        assert environment.score(prompt, transition.answer) == 1.0
        scoring.append(time.process_time() - begin)
    return steps / stepping, scoring


def main() -> None:
    numbers: dict[str, float] = {}
    devices = Devices()
    kinds: dict[str, tuple[Environment, list[Prompt]]] = {
        "devices": (
            devices,
            list(islice(devices.generate(np.random.default_rng(0), {1: 0.4, 2: 0.35, 3: 0.25}), 2000)),
        ),
        "single_turn": (Functions(), load_bfcl(["simple_python", "parallel_multiple"])),
        **{category: (Functions(), load_bfcl([category])) for category in MULTI_TURN},
    }
    for name, (environment, prompts) in kinds.items():
        measure(environment, prompts[:10])  # the first use imports the package
        rate, seconds = measure(environment, prompts)
        numbers[f"functions_{name}_steps_per_s"] = rate
        numbers[f"functions_{name}_verifications_per_s"] = len(seconds) / sum(seconds)
        numbers[f"functions_{name}_verification_p99_ms"] = 1000 * statistics.quantiles(seconds, n=100)[98]
    record(numbers)


if __name__ == "__main__":
    main()
