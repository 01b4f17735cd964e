"""Arithmetic with a calculator: "12 plus 5 minus 7 ?", answered one operation at a time, from left to right.

Numbers are those modulo 97, one word each. The skill is the order of the operations, copying results, and which of the
calculator's operations each operator word of the question names. The calculator does whatever it is told: a wrong
operation gives a wrong but plausible number.
"""

from __future__ import annotations

import numpy as np

from components.environments.base import Prompt, State, Transition, content_id
from components.environments.generated import GeneratedEnvironment
from components.tree.schema import StopReason

MODULUS = 97  # a prime: multiplication by anything but 0 loses nothing
NUMBERS = [str(number) for number in range(MODULUS)]

# The operator words of the questions; for each, the calculator's name of the operation and the coefficients
# (p, q, r, s) of p·a + q·b + r·a·b + s modulo 97.
OPERATIONS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "plus": ("add", (1, 1, 0, 0)), "minus": ("sub", (1, -1, 0, 0)), "times": ("mul", (0, 0, 1, 0)),
    "from": ("rsub", (-1, 1, 0, 0)), "twice": ("add_dbl", (1, 2, 0, 0)), "less": ("sub_dbl", (1, -2, 0, 0)),
    "doubled": ("dbl_add", (2, 1, 0, 0)), "outdo": ("dbl_sub", (2, -1, 0, 0)), "past": ("add_inc", (1, 1, 0, 1)),
    "before": ("sub_dec", (1, -1, 0, -1)), "over": ("mul_inc", (0, 0, 1, 1)), "under": ("mul_dec", (0, 0, 1, -1)),
    "with": ("mul_left", (1, 0, 1, 0)), "without": ("mul_right", (0, -1, 1, 0)), "join": ("sum_mul", (1, 1, 1, 0)),
    "split": ("dif_mul", (1, -1, 1, 0)), "tripled": ("tri_add", (3, 1, 0, 0)), "thrice": ("add_tri", (1, 3, 0, 0)),
    "lifted": ("add_ten", (1, 1, 0, 10)), "lowered": ("sub_ten", (1, -1, 0, -10)),
    "squeeze": ("neg_mul", (0, 0, -1, 0)), "stretch": ("dbl_mul", (0, 0, 2, 0)),
    "mirror": ("neg_add", (-1, -1, 0, 0)), "blend": ("mix", (2, 3, 0, 0)),
}  # fmt: skip
_COEFFICIENTS = dict(OPERATIONS.values())


def compute(operation: str, a: str, b: str) -> str:
    """What the calculator shows for an operation, by its own name, on two numbers."""
    p, q, r, s = _COEFFICIENTS[operation]
    return str((p * int(a) + q * int(b) + r * int(a) * int(b) + s) % MODULUS)


class Calculator(GeneratedEnvironment):
    """Built-in: chained arithmetic, one operation of a calculator at a time.

    A turn is ``<think> WORDS </think> calc OPERATION A B`` or ``<think> WORDS </think> answer NUMBER``.
    """

    name = "calculator"
    skills = list(OPERATIONS)

    def make_prompt(self, rng: np.random.Generator, chain: list[str]) -> Prompt:
        start, *operands = (str(number) for number in rng.integers(MODULUS, size=len(chain) + 1))
        return make_prompt(start, list(zip(chain, operands, strict=True)))

    def vocabulary(self) -> list[str]:
        grammar = ["?", "<think>", "</think>", "calc", "answer", "done", "nothing"]
        return [*grammar, *self.skills, *(name for name, _ in OPERATIONS.values()), *NUMBERS]

    def step(self, state: State, action: str) -> Transition:
        after = state.next()
        match action.rpartition("</think>")[2].split():
            case ["answer", number]:
                return Transition(after, stop_reason=StopReason.ANSWERED, answer=number)
            case ["calc", operation, a, b] if after.turn < self.params.max_turns:
                known = operation in _COEFFICIENTS and a in NUMBERS and b in NUMBERS
                return Transition(after, observation=compute(operation, a, b) if known else "nothing")
            case ["calc", _, _, _]:
                return Transition(after, stop_reason=StopReason.MAX_TURNS)
            case _:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)

    def solve(self, prompt: Prompt) -> list[str]:
        value, turns = str(prompt.metadata["start"]), []
        for operator, operand in prompt.metadata["steps"]:
            name = OPERATIONS[operator][0]
            turns.append(f"<think> {value} {operator} {operand} </think> calc {name} {value} {operand}")
            value = compute(name, value, operand)
        return [*turns, f"<think> done </think> answer {value}"]


def make_prompt(start: str, steps: list[tuple[str, str]]) -> Prompt:
    """The prompt "START o1 N1 o2 N2 ?" with operators and operands in the order in which they apply."""
    answer = start
    for operator, operand in steps:
        answer = compute(OPERATIONS[operator][0], answer, operand)
    question = " ".join([start, *(word for step in steps for word in step), "?"])
    metadata = {"start": start, "steps": [list(step) for step in steps]}
    return Prompt(content_id(question, answer), question, answer, metadata)
