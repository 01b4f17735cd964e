"""Speed of the function-calling environments and verifiers, on gold paths, per second of one core's time.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.functions_tools
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from components.verifiers.exact_match import ExactMatch

from bench.results import record
from components.environments.base import Environment, Prompt
from components.environments.devices import Devices, generate_prompts, solve
from components.environments.functions import Functions
from components.environments.functions.gold import gold_turns, play
from components.environments.functions.prompts import MULTI_TURN, load_bfcl
from components.environments.functions.verdicts import FunctionCalls
from components.environments.verify import Verifier


def measure(
    environment: Environment, verifier: Verifier, prompts: list[Prompt], path: Callable[[Prompt], list[str]]
) -> tuple[float, list[float]]:
    """Steps per second, resets included, and the seconds of each verification."""
    steps, stepping, verifying = 0, 0.0, []
    for prompt in prompts:
        actions = path(prompt)
        begin = time.process_time()
        state = environment.reset(prompt)
        for action in actions:
            transition = environment.step(state, action)
            state, steps = transition.state, steps + 1
            if transition.done:
                break
        stepping += time.process_time() - begin
        begin = time.process_time()
        assert verifier.score(prompt, transition.answer) == 1.0
        verifying.append(time.process_time() - begin)
    return steps / stepping, verifying


def main() -> None:
    numbers: dict[str, float] = {}
    stream = generate_prompts(np.random.default_rng(0), {1: 0.4, 2: 0.35, 3: 0.25})
    devices = [next(stream) for _ in range(2000)]
    kinds: dict[str, tuple[Environment, Verifier, list[Prompt], Callable[[Prompt], list[str]]]] = {
        "devices": (Devices(), ExactMatch(), devices, lambda prompt: [action for action, _ in solve(prompt)]),
        "single_turn": (Functions(), FunctionCalls(), load_bfcl(["simple_python", "parallel_multiple"]), gold_path),
        **{category: (Functions(), FunctionCalls(), load_bfcl([category]), gold_path) for category in MULTI_TURN},
    }
    for name, kind in kinds.items():
        measure(kind[0], kind[1], kind[2][:10], kind[3])  # the first use imports the package
        rate, seconds = measure(*kind)
        numbers[f"functions_{name}_steps_per_s"] = rate
        numbers[f"functions_{name}_verifications_per_s"] = len(seconds) / sum(seconds)
        numbers[f"functions_{name}_verification_p99_ms"] = 1000 * statistics.quantiles(seconds, n=100)[98]
    record(numbers)


def gold_path(prompt: Prompt) -> list[str]:
    return play(gold_turns(prompt))


if __name__ == "__main__":
    main()
