"""Generates requests to change devices, and demonstrations whose word frequencies set how hard each request is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from components.datasets.chains import draw_chains, zipf
from components.environments.base import Prompt
from components.environments.devices import CIRCUITS, DEVICES, FUNCTIONS, SKILLS, State


def generate_prompts(
    rng: np.random.Generator, hops: dict[int, float], skill_weights: np.ndarray | None = None
) -> Iterator[Prompt]:
    """An endless stream of prompts with ids by content.

    Args:
        rng: Source of everything drawn.
        hops: Weight of each number of changes.
        skill_weights: Weight of each setting word, in the order of `SKILLS`; uniform by default.
    """
    for skills in draw_chains(rng, SKILLS, hops, skill_weights):
        devices = [DEVICES[i] for i in rng.integers(len(DEVICES), size=len(skills))]
        yield make_prompt(int(rng.integers(2**31)), list(zip(devices, skills, strict=True)))


def make_prompt(seed: int, changes: Sequence[tuple[str, str]]) -> Prompt:
    """The prompt "make the DEVICE SETTING , then the DEVICE SETTING ." in the house of `seed`; gold: its settings."""
    state = State(seed)
    for device, skill in changes:
        state = state.change(device, skill)
    question = "make " + " , then ".join(f"the {device} {skill}" for device, skill in changes) + " ."
    content = hashlib.sha256(f"{seed}\0{question}\0{state.describe()}".encode()).hexdigest()[:16]
    return Prompt(content, question, state.describe(), {"seed": seed, "changes": [list(c) for c in changes]})


def zipf_weights(exponent: float) -> np.ndarray:
    """Weights 1/rank^exponent over the setting words."""
    return zipf(len(SKILLS), exponent)


def vocabulary() -> list[str]:
    """Every word that questions, turns and observations can hold."""
    grammar = ["make", "the", ",", "then", ".", "<think>", "</think>", "find", "call", "answer", "done", "nothing"]
    return [*grammar, *SKILLS, *(function for function, _ in FUNCTIONS.values()), *DEVICES, *CIRCUITS]
