"""Mathematical problems with a Python tool, for chat models.

A turn is a tool call (see `parsing`) or the answer. Every call runs afresh, so the state is the number of turns.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from components.environments.base import Chat, Environment, Prompt, Splits, State, Transition
from components.environments.files import FilesParams, prompts_of_files
from components.environments.generated import SEED
from components.environments.math.boxed import last_boxed
from components.environments.math.python_tool import PYTHON_TOOLS, PythonTool
from components.environments.parsing import MalformedCall, Turn, parse_turn
from components.params.base import NOT_DATA
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


class MathParams(FilesParams):
    """Problems of data files; a file named ``reasoning-gym`` stands for generated ones."""

    python: Annotated[Literal["sandboxed", "confined"], NOT_DATA] = Field(
        "sandboxed", description="Interpreter: a sandboxed subset, or CPython in a confined process."
    )


class MathWithPython(Environment):
    """For real models: mathematical problems with a Python tool.

    A call that cannot be read, or is not `python` with the text `code`, is answered with an error and never run. A call
    in the last turn ends the rollout unrun.

    Args:
        tool: Runs the code; by default the interpreter that the parameters name.
    """

    name = "math"
    Params = MathParams
    licence = "that of the files"
    needs = {"math_verify": "math"}

    def __init__(
        self, params: MathParams | None = None, cache: Path = Path("data/cache"), tool: PythonTool | None = None
    ) -> None:
        super().__init__(params, cache)
        self.tool = tool or shared_tool(self.params.python)
        self.parallel_scores = os.cpu_count() or 1

    def prompts(self) -> Splits:
        from components.environments.math.problems import generate_reasoning, load_math

        def load(file: str) -> list[Prompt]:
            if file == "reasoning-gym":
                wanted = sum(getattr(self.params, f"{split}_prompts") for split in ("train", "val", "test"))
                return generate_reasoning(SEED, wanted)
            return load_math(file, conflicts="drop")

        return prompts_of_files(self.params, load)

    def source(self) -> str:
        return ", ".join(file for files in self.params.files.values() for file in files)

    def chat(self, prompt: Prompt) -> Chat:
        return Chat((("system", SYSTEM), ("user", prompt.question)), (TOOL,))

    def score(self, prompt: Prompt, answer: str | None) -> float:
        from components.environments.math.grader import reward

        return reward(prompt.answer, answer)

    def solve(self, prompt: Prompt) -> list[str]:
        return [f"\\boxed{{{prompt.answer}}}"]

    def step(self, state: State, action: str) -> Transition:
        after = state.next()
        try:
            turn = parse_turn(action)
            code = _code(turn) if turn.calls else None
        except MalformedCall as error:
            if after.turn >= self.params.max_turns:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
            return Transition(after, observation=f"error: {error}; nothing was run")
        if code is None:
            if not turn.text:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
            return Transition(after, stop_reason=StopReason.ANSWERED, answer=last_boxed(turn.text) or turn.text)
        if after.turn >= self.params.max_turns:
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
