"""What an environment is: a pure transition on states that are values, so that branching is always right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Prompt:
    """One task instance.

    Attributes:
        prompt_id: Content hash of question, answer and metadata.
        question: Text shown to the policy.
        answer: Gold answer.
        metadata: What the environment needs to run the task; JSON-like.
    """

    prompt_id: str
    question: str
    answer: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chat:
    """How a rollout begins.

    Attributes:
        messages: (role, content) pairs before the policy's first turn; roles are system, user, assistant and tool.
        tools: JSON schemas of the tools, as chat templates take them.
    """

    messages: tuple[tuple[str, str], ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Transition:
    """What one action led to.

    Attributes:
        state: The new state; the old one is untouched.
        observation: Text returned to the policy; None when the rollout ended.
        stop_reason: A `StopReason` when the rollout ended, else None.
        answer: The final answer, when one was given: the text that the verifier judges.
        role: Who says the observation: the tool, or the user who asks on.
    """

    state: Any
    observation: str | None = None
    stop_reason: str | None = None
    answer: str | None = None
    role: Literal["tool", "user"] = "tool"

    @property
    def done(self) -> bool:
        return self.stop_reason is not None


class Environment(Protocol):
    """A task: turns are thought and action from the policy, then an observation."""

    def chat(self, prompt: Prompt) -> Chat:
        """What the policy sees before its first turn."""

    def reset(self, prompt: Prompt) -> Any:
        """The state before the first turn."""

    def step(self, state: Any, action: str) -> Transition:
        """The transition that a turn's text leads to. Never raises on what a policy wrote: that is a stop reason."""


def replay(environment: Environment, prompt: Prompt, actions: list[str]) -> Any:
    """The state at a visited prefix: states are values and transitions pure, so replaying the actions restores it."""
    state = environment.reset(prompt)
    for action in actions:
        state = environment.step(state, action).state
    return state
