"""Changes to the devices of a house: "make the lamp warm , then the oven silent .", by calls on its circuits.

A call addresses a circuit, not a device, and every change rewires the house: which circuit a device hangs on must be
looked up again before each call. A call on another circuit changes another device, and a setting that is overwritten
by a later call to the same slot is gone, so the order of the calls matters. Success is judged on the final settings.

Nothing can be memorised but the skill: which function of the API each setting word of the question names. The wiring
is a function of the prompt's seed and of the number of changes so far, rather than a stored table.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from components.environments.base import Prompt, Transition, content_id
from components.environments.generated import GeneratedEnvironment, GeneratedParams
from components.params.base import NOT_DATA, PositiveInt
from components.tree.schema import StopReason

DEVICES = (  # noqa: SIM905 - 16 names are easier to read so than one a line
    "lamp oven fan door radio clock heater pump screen blind kettle printer shower mirror freezer speaker"
).split()
CIRCUITS = [f"c{number}" for number in range(len(DEVICES))]

# The setting words of the questions, the function that brings each one about, and the slot of the device it sets.
FUNCTIONS = {
    "warm": ("heat", "temperature"), "bright": ("lighten", "light"), "loud": ("amplify", "sound"),
    "open": ("unlatch", "lock"), "fast": ("hasten", "speed"), "red": ("redden", "colour"),
    "high": ("lift", "position"), "on": ("start", "power"), "cold": ("chill", "temperature"),
    "dim": ("shade", "light"), "quiet": ("hush", "sound"), "closed": ("latch", "lock"),
    "slow": ("brake", "speed"), "green": ("paint", "colour"), "low": ("sink", "position"),
    "off": ("stop", "power"), "tepid": ("temper", "temperature"), "dark": ("blacken", "light"),
    "silent": ("mute", "sound"), "barred": ("bolt", "lock"), "steady": ("pace", "speed"),
    "blue": ("dye", "colour"), "level": ("flatten", "position"), "asleep": ("doze", "power"),
}  # fmt: skip
_SKILL_OF = {function: skill for skill, (function, _) in FUNCTIONS.items()}


@dataclass(frozen=True)
class State:
    """Where a rollout stands; `settings` holds ((device, slot), setting word), sorted."""

    seed: int
    settings: tuple[tuple[tuple[str, str], str], ...] = ()
    changes: int = 0
    turn: int = 0

    def circuit(self, device: str) -> str:
        """The circuit that the device hangs on now: one of its own for each device."""
        return CIRCUITS[self._wiring()[DEVICES.index(device)]]

    def device(self, circuit: str) -> str:
        return DEVICES[self._wiring().index(CIRCUITS.index(circuit))]

    def _wiring(self) -> list[int]:
        return random.Random(f"{self.seed}/{self.changes}").sample(range(len(CIRCUITS)), len(CIRCUITS))

    def change(self, device: str, skill: str) -> State:
        settings = {**dict(self.settings), (device, FUNCTIONS[skill][1]): skill}
        return replace(self, settings=tuple(sorted(settings.items())), changes=self.changes + 1)

    def describe(self) -> str:
        """The settings that were made, in a canonical order: what the verifier compares."""
        return " , ".join(f"{device} {slot} {setting}" for (device, slot), setting in self.settings)


class DevicesParams(GeneratedParams):
    """The task, and how hard its generator makes it."""

    turns_per_step: ClassVar[int] = 2

    max_turns: Annotated[PositiveInt, NOT_DATA] = Field(10, description="Turns after which a rollout is stopped.")


class Devices(GeneratedEnvironment):
    """Built-in: settings of a house that rewires itself, by calls on its circuits.

    A turn is ``<think> WORDS </think> find DEVICE``, ``<think> WORDS </think> call FUNCTION CIRCUIT`` or
    ``<think> WORDS </think> answer done``.
    """

    name = "devices"
    Params = DevicesParams
    skills = list(FUNCTIONS)

    def make_prompt(self, rng: np.random.Generator, chain: list[str]) -> Prompt:
        devices = [DEVICES[i] for i in rng.integers(len(DEVICES), size=len(chain))]
        return make_prompt(int(rng.integers(2**31)), list(zip(devices, chain, strict=True)))

    def vocabulary(self) -> list[str]:
        grammar = ["make", "the", ",", "then", ".", "<think>", "</think>", "find", "call", "answer", "done", "nothing"]
        return [*grammar, *self.skills, *(function for function, _ in FUNCTIONS.values()), *DEVICES, *CIRCUITS]

    def reset(self, prompt: Prompt) -> State:
        return State(seed=int(prompt.metadata["seed"]))

    def step(self, state: State, action: str) -> Transition:
        after = replace(state, turn=state.turn + 1)
        match action.rpartition("</think>")[2].split():
            case ["answer", "done"]:
                return Transition(after, stop_reason=StopReason.ANSWERED, answer=after.describe())
            case ["find", _] | ["call", _, _] if after.turn >= self.params.max_turns:
                return Transition(after, stop_reason=StopReason.MAX_TURNS)
            case ["find", device]:
                return Transition(after, observation=state.circuit(device) if device in DEVICES else "nothing")
            case ["call", function, circuit]:
                if function not in _SKILL_OF or circuit not in CIRCUITS:
                    return Transition(after, observation="nothing")
                device, skill = state.device(circuit), _SKILL_OF[function]
                return Transition(after.change(device, skill), observation=f"{device} {skill}")
            case _:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)

    def solve(self, prompt: Prompt) -> list[str]:
        state, turns = self.reset(prompt), list[str]()
        for device, skill in prompt.metadata["changes"]:
            turns.append(f"<think> {device} </think> find {device}")
            turns.append(f"<think> {skill} </think> call {FUNCTIONS[skill][0]} {state.circuit(device)}")
            state = state.change(device, skill)
        return [*turns, "<think> done </think> answer done"]


def make_prompt(seed: int, changes: Sequence[tuple[str, str]]) -> Prompt:
    """The prompt "make the DEVICE SETTING , then the DEVICE SETTING ." in the house of `seed`; gold: its settings."""
    state = State(seed)
    for device, skill in changes:
        state = state.change(device, skill)
    question = "make " + " , then ".join(f"the {device} {skill}" for device, skill in changes) + " ."
    metadata = {"seed": seed, "changes": [list(change) for change in changes]}
    return Prompt(content_id(seed, question, state.describe()), question, state.describe(), metadata)
