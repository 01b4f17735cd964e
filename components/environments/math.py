"""Mathematical problems with a Python tool, for chat models.

A turn is a tool call (see `parsing`) or the answer. Every call runs afresh, so the state is the number of turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from components.environments.base import Chat, Prompt, Transition
from components.environments.boxed import last_boxed
from components.environments.parsing import MalformedCall, Turn, parse_turn
from components.environments.python_tool import PYTHON_TOOLS, PythonTool
from components.tree.schema import Status, StopReason

SYSTEM = (
    "Solve the problem step by step. You may run Python with the tool `python`, one call in a turn. Each call starts "
    "afresh: it sees nothing of earlier calls, so repeat what you need, and print what you want to see. "
    "When you are done, put the final answer in \\boxed{} and call no tool."
)
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs Python code in a new interpreter, without files or network, and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code."}},
            "required": ["code"],
        },
    },
}

shared_tool = lru_cache(maxsize=None)(lambda name: PYTHON_TOOLS[name]())  # one pool of processes for all environments


@dataclass(frozen=True)
class State:
    """Where a rollout stands."""

    turn: int = 0


@dataclass(frozen=True)
class MathWithPython:
    """The environment.

    A call that cannot be read, or is not `python` with the text `code`, is answered with an error and never run. A call
    in the last turn ends the rollout unrun.
    """

    max_turns: int = 5
    tool: PythonTool = field(default_factory=lambda: shared_tool("sandboxed"))

    def chat(self, prompt: Prompt) -> Chat:
        return Chat((("system", SYSTEM), ("user", prompt.question)), (TOOL,))

    def reset(self, prompt: Prompt) -> State:
        return State()

    def step(self, state: State, action: str) -> Transition:
        after = replace(state, turn=state.turn + 1)
        try:
            turn = parse_turn(action)
            code = _code(turn) if turn.calls else None
        except MalformedCall as error:
            if after.turn >= self.max_turns:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
            return Transition(after, observation=f"error: {error}; nothing was run")
        if code is None:
            if not turn.text:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
            return Transition(after, stop_reason=StopReason.ANSWERED, answer=last_boxed(turn.text) or turn.text)
        if after.turn >= self.max_turns:
            return Transition(after, stop_reason=StopReason.MAX_TURNS)
        result = self.tool.run(code)
        silent = "(no output: print what you want to see)" if result.status == Status.OK else result.status
        return Transition(after, observation=result.output.rstrip() or silent)


def _code(turn: Turn) -> str:
    """The code of a turn's one call.

    Raises:
        MalformedCall: if there are more calls, or it is another call.
    """
    if len(turn.calls) > 1:
        raise MalformedCall(f"{len(turn.calls)} calls in one turn; one is allowed")
    call = turn.calls[0]
    if call.name != "python":
        raise MalformedCall(f"no tool is named {call.name[:100]!r}; there is 'python'")
    code = call.arguments.get("code")
    if set(call.arguments) != {"code"} or not isinstance(code, str) or not code.strip():
        raise MalformedCall("python takes one argument, 'code', which is a text that is not blank")
    return code
