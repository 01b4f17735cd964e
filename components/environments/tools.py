"""Tasks for real chat models, whose turns call tools or answer: in the form of the chat template, or as ReAct text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from components.environments.base import Chat, Environment, EnvironmentParams, Prompt, State, Transition
from components.environments.parsing import Call, MalformedCall, parse_turn
from components.params.base import NOT_DATA
from components.tree.schema import StopReason

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_MARKUP = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|answer)\b)")


class ToolParams(EnvironmentParams):
    """The task, and the form of its turns."""

    react: Annotated[bool, NOT_DATA] = Field(False, description="Plain ReAct text, for chat templates without tools.")


class ChatEnvironment(Environment):
    """A task for chat models.

    A call that cannot be read, or is none that can be made, is never made in part or as another one. What the policy
    sees is why, so that it can mend the call; in its last turn the rollout ends as `malformed_action`.
    """

    Params = ToolParams

    def observed(self, state: Any, text: str) -> Transition:
        """What a tool returned."""
        if self.params.react:
            return Transition(state, f"Observation: {text}", role="user")
        return Transition(state, text)

    def refused(self, state: Any, error: Exception, last: bool) -> Transition:
        """Why nothing was run."""
        if last:
            return Transition(state, stop_reason=StopReason.MALFORMED_ACTION)
        return self.observed(state, clean(f"Error: {error}; nothing was run."))


class ToolEnvironment(ChatEnvironment):
    """A task with one tool that takes one text. A call in the last turn ends the rollout unmade.

    Attributes:
        tool, argument: The name of each, and what it does or is.
        most_calls: How many calls one turn may hold.
        rules: The system prompt, up to how an answer is given.
        ending, react_ending: How an answer is given, in either form.
    """

    tool: ClassVar[tuple[str, str]]
    argument: ClassVar[tuple[str, str]]
    most_calls: ClassVar[int] = 1
    rules: ClassVar[str]
    ending: ClassVar[str]
    react_ending: ClassVar[str]

    def run(self, texts: list[str]) -> str:
        """What the tool returns for the calls of a turn."""
        raise NotImplementedError

    def answer_in(self, text: str) -> str:
        """The final answer in a turn without calls; empty where there is none."""
        raise NotImplementedError

    def chat(self, prompt: Prompt) -> Chat:
        (name, does), (argument, is_what) = self.tool, self.argument
        if self.params.react:
            form = f"{self.react_ending} {react_form(name, f'the {argument}', 'the answer')}"
            system = f"You have one tool, {name}({argument}). {does}\n{self.rules}{form}"
            return Chat((("system", system), ("user", prompt.question)))
        properties = {argument: {"type": "string", "description": is_what}}
        parameters = {"type": "object", "properties": properties, "required": [argument]}
        schema = {"type": "function", "function": {"name": name, "description": does, "parameters": parameters}}
        return Chat((("system", self.rules + self.ending), ("user", prompt.question)), (schema,))

    def step(self, state: State, action: str) -> Transition:
        after = state.next()
        last = after.turn >= self.params.max_turns
        try:
            turn = parse_turn(action, {self.tool[0]: self.argument[0]} if self.params.react else None)
            texts = self._texts(turn.calls)
        except MalformedCall as error:
            return self.refused(after, error, last)
        if texts and last:
            return Transition(after, stop_reason=StopReason.MAX_TURNS)
        if texts:
            return self.observed(after, self.run(texts))
        if answer := self.answer_in(turn.text):
            return Transition(after, stop_reason=StopReason.ANSWERED, answer=answer)
        return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)

    def _texts(self, calls: Sequence[Call]) -> list[str]:
        """The arguments of a turn's calls.

        Raises:
            MalformedCall: if there are too many, or one is not of this tool with one text that is not blank.
        """
        if len(calls) > self.most_calls:
            raise MalformedCall(f"{len(calls)} calls in one turn; at most {self.most_calls} may be made")
        (name, _), (argument, _) = self.tool, self.argument
        for call in calls:
            text = call.arguments.get(argument)
            if call.name != name:
                raise MalformedCall(f"there is no tool {call.name[:50]!r}; the only tool is {name!r}")
            if set(call.arguments) != {argument} or not isinstance(text, str):
                raise MalformedCall(f"{name} takes one argument, {argument!r}, a text")
            if not printable(text).strip():
                raise MalformedCall(f"the {argument} is empty")
        return [call.arguments[argument] for call in calls]


def react_form(name: str, argument: str, ending: str) -> str:
    """How turns are written for chat templates without tools."""
    return (
        "Write each turn in one of these two forms, and nothing after it:\n\n"
        f"Thought: what you know and what is missing\nAction: {name}\nAction Input: {argument}\n\n"
        f"Thought: why you are done\nFinal Answer: {ending}"
    )


def printable(text: str) -> str:
    """Without control characters other than line breaks and tabs, and without halves of surrogate pairs."""
    return _CONTROL.sub(" ", text)


def clean(text: str) -> str:
    """Printable, and without what a chat template takes for markup: what a tool returns is no one's turn."""
    return _MARKUP.sub("< ", printable(text))
