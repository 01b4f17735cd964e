"""Generates arithmetic for the calculator; how often demonstrations use an operator word sets how hard it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from components.datasets.chains import draw_chains, zipf
from components.environments.base import Prompt
from components.environments.calculator import MODULUS, NUMBERS, OPERATIONS, OPERATORS, compute


def generate_prompts(
    rng: np.random.Generator, hops: dict[int, float], operator_weights: np.ndarray | None = None
) -> Iterator[Prompt]:
    """An endless stream of prompts with ids by content.

    Args:
        rng: Source of everything drawn.
        hops: Weight of each number of operations.
        operator_weights: Weight of each operator word, in the order of `OPERATORS`; uniform by default.
    """
    for chain in draw_chains(rng, OPERATORS, hops, operator_weights):
        start, *operands = (str(number) for number in rng.integers(MODULUS, size=len(chain) + 1))
        yield make_prompt(start, list(zip(chain, operands, strict=True)))


def make_prompt(start: str, steps: list[tuple[str, str]]) -> Prompt:
    """The prompt "START o1 N1 o2 N2 ?" with operators and operands in the order in which they apply."""
    answer = start
    for operator, operand in steps:
        answer = compute(OPERATIONS[operator][0], answer, operand)
    question = " ".join([start, *(word for step in steps for word in step), "?"])
    content = hashlib.sha256(f"{question}\0{answer}".encode()).hexdigest()[:16]
    return Prompt(content, question, answer, {"start": start, "steps": [list(step) for step in steps]})


def zipf_weights(exponent: float) -> np.ndarray:
    """Weights 1/rank^exponent over the operator words."""
    return zipf(len(OPERATORS), exponent)


def vocabulary() -> list[str]:
    """Every word that questions, turns and observations can hold."""
    grammar = ["?", "<think>", "</think>", "calc", "answer", "done", "nothing"]
    return [*grammar, *OPERATORS, *(name for name, _ in OPERATIONS.values()), *NUMBERS]
