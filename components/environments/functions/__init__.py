"""Function calling on simulated APIs: the multi-turn and the single-turn categories of the Berkeley leaderboard (v4).

Multi-turn: the user asks several things in turn. The policy calls functions, one or several at a time, and sees what
they return; a turn without calls ends the user's turn, and the next request follows. The API objects lie in the state:
a step works on copies of those that it calls, so two branches of a prefix never meet. Functions that a scenario holds
back are unknown until the user brings them.

Single-turn: one turn of the policy, whose calls are judged as they are written.

Source of the tasks: Patil et al., "The Berkeley Function Calling Leaderboard", ICML 2025; data and APIs come from the
package `bfcl-eval`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from components.environments.base import Chat, Environment, EnvironmentParams, Prompt, Splits, Transition
from components.environments.files import cut
from components.environments.functions import bfcl
from components.environments.functions.calls import read_calls, write_turns
from components.environments.parsing import Call, MalformedCall
from components.tree.schema import StopReason

Step = tuple[Call, ...]
MULTI_TURN = ("multi_turn_base", "multi_turn_long_context", "multi_turn_miss_func", "multi_turn_miss_param")


@dataclass(frozen=True)
class State:
    """Where a rollout stands.

    Attributes:
        task: The prompt's metadata, never changed.
        apis: API objects by class, never changed: a step replaces them by changed copies.
        past: Steps with calls in each user's turn that is over.
        steps: Those in the running one.
        turn: Turns that the policy has taken.
    """

    task: Mapping[str, Any]
    apis: Mapping[str, Any]
    past: tuple[tuple[Step, ...], ...] = ()
    steps: tuple[Step, ...] = ()
    turn: int = 0


class FunctionsParams(EnvironmentParams):
    """Scenarios of the Berkeley leaderboard."""

    categories: list[str] = Field(list(MULTI_TURN), description="BFCL categories.")


class Functions(Environment):
    """For real models: calls of the simulated APIs of the Berkeley leaderboard (BFCL v4).

    Attributes:
        max_steps: Turns with calls in one turn of the user (the leaderboard's limit).
        max_observation: Characters that the policy sees of what a turn's calls return. What is over is cut out of the
            middle, and the text says so; the score is by the whole.
    """

    name = "functions"
    Params = FunctionsParams
    licence = "Apache-2.0 (bfcl-eval)"
    max_steps = 20
    max_observation = 16_384

    def __init__(self, params: FunctionsParams | None = None, cache: Path = Path("data/cache")) -> None:
        super().__init__(params, cache)
        self.parallel_scores = os.cpu_count() or 1

    def prompts(self) -> Splits:
        """80 to 20; the validation prompts are cut from the 80."""
        from components.environments.functions.prompts import load_bfcl, split_bfcl

        return cut(self.params, split_bfcl(load_bfcl(self.params.categories)))

    def source(self) -> str:
        return "the package bfcl-eval"

    def score(self, prompt: Prompt, answer: str | None) -> float:
        from components.environments.functions.verdicts import reward

        return reward(prompt, answer)

    def solve(self, prompt: Prompt) -> list[str]:
        from components.environments.functions.gold import gold_turns, play

        return play(gold_turns(prompt))

    def chat(self, prompt: Prompt) -> Chat:
        task = prompt.metadata
        tools = tuple(bfcl.tool_schema(function) for function in offered(task, 0))
        return Chat(tuple((role, content) for role, content in task["turns"][0]), tools)

    def reset(self, prompt: Prompt) -> State:
        task = prompt.metadata
        return State(task, bfcl.load_apis(task["classes"], task["config"], task["long_context"]))

    def step(self, state: State, action: str) -> Transition:
        task, state = state.task, replace(state, turn=state.turn + 1)
        functions = offered(task, len(state.past))
        try:
            calls = read_calls(action, {f["name"]: list(f["parameters"]["properties"]) for f in functions})
        except MalformedCall:
            return Transition(state, stop_reason=StopReason.MALFORMED_ACTION)
        if not task["classes"]:
            return Transition(state, stop_reason=StopReason.ANSWERED, answer=write_turns([[calls] if calls else []]))
        if not calls:
            return self._next_request(state)
        if state.turn >= self.params.max_turns or len(state.steps) >= self.max_steps:
            return Transition(state, stop_reason=StopReason.MAX_TURNS)
        try:
            apis, results = run_calls(state.apis, calls, [f["name"] for f in functions])
        except bfcl.TooLarge:
            return Transition(state, stop_reason=StopReason.TOOL_ERROR)
        return Transition(replace(state, apis=apis, steps=(*state.steps, calls)), self._show(calls, results))

    def _next_request(self, state: State) -> Transition:
        """The user's turn is over."""
        past = (*state.past, state.steps)
        state = replace(state, past=past, steps=())
        if len(past) == len(state.task["turns"]):
            return Transition(state, stop_reason=StopReason.ANSWERED, answer=write_turns(past))
        if state.turn >= self.params.max_turns:
            return Transition(state, stop_reason=StopReason.MAX_TURNS)
        request = "\n".join(content for _, content in state.task["turns"][len(past)])
        return Transition(state, request, role="user")

    def _show(self, calls: Sequence[Call], results: Sequence[str]) -> str:
        text = "\n".join(
            result if len(calls) == 1 else f"{call.name}: {result}" for call, result in zip(calls, results, strict=True)
        )
        if (left_out := len(text) - self.max_observation) <= 0:
            return text
        half = self.max_observation // 2
        return f"{text[:half]}\n[{left_out} characters left out]\n{text[half + left_out :]}"


def run_calls(
    apis: Mapping[str, Any], calls: Sequence[Call], known: Sequence[str]
) -> tuple[Mapping[str, Any], list[str]]:
    """Runs the calls on copies of the objects that they concern.

    Args:
        apis: API objects by class; untouched.
        calls: What to run, in order.
        known: Names of the functions that exist at this point.

    Returns:
        The objects afterwards, and what each call returned: the result, or the text of an error.

    Raises:
        TooLarge: if an object is of no use any more.
    """
    owners = [bfcl.owner(call, list(apis)) if call.name in known else None for call in calls]
    after = {name: deepcopy(api) if name in owners else api for name, api in apis.items()}
    results = [
        f"Error during execution: there is no function {call.name[:80]!r}"
        if name is None
        else bfcl.execute(after[name], call)
        for name, call in zip(owners, calls, strict=True)
    ]
    return after, results


def offered(task: Mapping[str, Any], turn: int) -> list[Mapping[str, Any]]:
    """Documents of the functions that exist in a turn of the user, counted from 0."""
    held_back = {name for start, names in task["held_back"].items() if int(start) > turn for name in names}
    documents = [*task["functions"], *(f for name in task["classes"] for f in bfcl.functions_of(name))]
    return [document for document in documents if document["name"] not in held_back]
