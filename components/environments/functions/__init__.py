"""Function calling on simulated APIs: the multi-turn and the single-turn categories of the Berkeley leaderboard (v4).

Multi-turn: the user asks several things in turn. The policy calls functions, one or several at a time, and sees what
they return; a turn without calls ends the user's turn, and the next request follows. The API objects lie in the state:
a step works on copies of those that it calls, so two branches of a prefix never meet. Functions that a scenario holds
back are unknown until the user brings them.

Single-turn: one turn of the policy, whose calls are judged as they are written.

A turn with a call that cannot be read is answered with the reason, and nothing of it is run; in the last turn (of a
single-turn category: the only one) it ends the rollout.

Source of the tasks: Patil et al., "The Berkeley Function Calling Leaderboard", ICML 2025; data and APIs come from the
package `bfcl-eval`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components.environments.base import Chat, Prompt, Splits, Transition
from components.environments.files import cut
from components.environments.functions import bfcl
from components.environments.functions.bfcl import offered
from components.environments.functions.calls import Step, read_calls, write_turns
from components.environments.functions.gold import gold_turns, play
from components.environments.functions.prompts import MULTI_TURN, load_bfcl, split_bfcl
from components.environments.functions.verdicts import reward
from components.environments.parsing import Call, MalformedCall
from components.environments.tools import ChatEnvironment, ToolParams, react_form
from components.params.base import NOT_DATA, PositiveInt
from components.tree.schema import StopReason

REACT = (
    "Call one function in a turn, and see what it returns; or several at once, as a list and nothing else: "
    "[first(a=1), second(b=2)]. When nothing is left to call, or nothing fits, say so as the final answer."
)


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


class FunctionsParams(ToolParams):
    """Scenarios of the Berkeley leaderboard."""

    max_turns: Annotated[PositiveInt, NOT_DATA] = Field(40, description="Turns after which a rollout is stopped.")
    categories: list[str] = Field(list(MULTI_TURN), description="BFCL categories.")


class Functions(ChatEnvironment):
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
        return cut(self.params, split_bfcl(load_bfcl(self.params.categories)))

    def source(self) -> str:
        return "the package bfcl-eval"

    def score(self, prompt: Prompt, answer: str | None) -> float:
        return reward(prompt, answer)

    def solve(self, prompt: Prompt) -> list[str]:
        turns = play(gold_turns(prompt))
        return turns if prompt.metadata["classes"] else turns[:1]

    def chat(self, prompt: Prompt) -> Chat:
        messages = [(role, content) for role, content in prompt.metadata["turns"][0]]
        tools = [bfcl.tool_schema(function) for function in offered(prompt.metadata, 0)]
        if not self.params.react:
            return Chat(tuple(messages), tuple(tools))
        given = messages.pop(0)[1] + "\n\n" if messages[0][0] == "system" else ""
        form = react_form("FUNCTION", "an object with its arguments", "what the user should know")
        functions = "\n".join(json.dumps(tool["function"]) for tool in tools)
        system = f"{given}You may call these functions, and no others:\n{functions}\n\n{REACT}\n{form}"
        return Chat((("system", system), *messages))

    def reset(self, prompt: Prompt) -> State:
        task = prompt.metadata
        return State(task, bfcl.load_apis(task["classes"], task["config"], task["long_context"]))

    def step(self, state: State, action: str) -> Transition:
        task, state = state.task, replace(state, turn=state.turn + 1)
        last = state.turn >= self.params.max_turns
        functions = offered(task, len(state.past))
        try:
            calls = read_calls(action, {f["name"]: list(f["parameters"]["properties"]) for f in functions})
        except MalformedCall as error:
            return self.refused(state, error, last or not task["classes"])
        if not task["classes"]:
            return Transition(state, stop_reason=StopReason.ANSWERED, answer=write_turns([[calls] if calls else []]))
        if not calls:
            return self._next_request(state)
        if last or len(state.steps) >= self.max_steps:
            return Transition(state, stop_reason=StopReason.MAX_TURNS)
        try:
            apis, results = bfcl.run_calls(state.apis, calls, [f["name"] for f in functions])
        except bfcl.TooLarge:
            return Transition(state, stop_reason=StopReason.TOOL_ERROR)
        return self.observed(replace(state, apis=apis, steps=(*state.steps, calls)), self._show(calls, results))

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
