"""The built-in tasks: what generates their prompts, and the demonstrations that warm a tiny policy up.

All share two dials: how many steps a question takes (`hops`), and how rare some skill words are in demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from components.datasets import calculator, devices, multihop
from components.environments.base import Prompt
from components.environments.calculator import solve as solve_calculator
from components.environments.devices import solve as solve_devices
from components.environments.multihop import solve as solve_multihop


@dataclass(frozen=True)
class Builtin:
    """A built-in task.

    Attributes:
        generate: An endless stream of prompts from a generator, weights of the numbers of steps, and weights of the
            skill words (None: uniform).
        zipf_weights: Weights 1/rank^exponent of the skill words.
        vocabulary: Every word that questions, turns and observations can hold.
        solve: The gold path of a prompt: (turn text, observation) pairs; the last observation is None.
        turns: Turns that a question of so many steps takes, the answer included.
    """

    generate: Callable[[np.random.Generator, dict[int, float], np.ndarray | None], Iterator[Prompt]]
    zipf_weights: Callable[[float], np.ndarray]
    vocabulary: Callable[[], list[str]]
    solve: Callable[[Prompt], list[tuple[str, str | None]]]
    turns: Callable[[int], int] = lambda hops: hops + 1


BUILTIN = {
    "multihop": Builtin(multihop.generate_prompts, multihop.zipf_weights, multihop.vocabulary, solve_multihop),
    "calculator": Builtin(
        calculator.generate_prompts, calculator.zipf_weights, calculator.vocabulary, solve_calculator
    ),
    "devices": Builtin(
        devices.generate_prompts, devices.zipf_weights, devices.vocabulary, solve_devices, lambda hops: 2 * hops + 1
    ),
}
