"""Mathematical problems with a Python tool. Every call runs afresh, so the state is the number of turns."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from components.environments.base import Prompt
from components.environments.files import FilesEnvironment, FilesParams
from components.environments.generated import SEED
from components.environments.math.boxed import last_boxed
from components.environments.math.problems import generate_reasoning, load_math
from components.environments.math.python_tool import PYTHON_TOOLS, PythonTool
from components.environments.tools import ToolEnvironment, ToolParams
from components.params.base import NOT_DATA
from components.tree.schema import Status

GENERATED = "reasoning-gym"  # stands for problems of that package where the name of a file is expected
_FENCED = re.compile(r"```(?:python|py)?\n(.*?)\n?```", re.DOTALL)

shared_tool = lru_cache(maxsize=None)(lambda name: PYTHON_TOOLS[name]())  # one pool of processes for all environments


class MathParams(ToolParams, FilesParams):
    """Problems of data files; a file named ``reasoning-gym`` stands for generated ones."""

    python: Annotated[Literal["sandboxed", "confined"], NOT_DATA] = Field(
        "sandboxed", description="Interpreter: a sandboxed subset, or CPython in a confined process."
    )


class MathWithPython(ToolEnvironment, FilesEnvironment):
    """For real models: mathematical problems with a Python tool.

    Args:
        tool: Runs the code; by default the interpreter that the parameters name.
    """

    name = "math"
    Params = MathParams
    needs = {"math_verify": "math"}
    tool = ("python", "Runs Python code in a new interpreter, without files or network, and returns what it prints.")
    argument = ("code", "Python code.")
    rules = (
        "Solve the problem step by step. You may run Python with the tool `python`, one call in a turn. Each call "
        "starts afresh: it sees nothing of earlier calls, so repeat what you need, and print what you want to see. "
        "When you are done, put the final answer in \\boxed{} "
    )
    ending = "and call no tool."
    react_ending = "after 'Final Answer:'."

    def __init__(
        self, params: MathParams | None = None, cache: Path = Path("data/cache"), python: PythonTool | None = None
    ) -> None:
        super().__init__(params, cache)
        self.python = python or shared_tool(self.params.python)
        self.parallel_scores = os.cpu_count() or 1

    def load(self, file: str) -> list[Prompt]:
        if file == GENERATED:
            wanted = sum(getattr(self.params, f"{split}_prompts") for split in ("train", "val", "test"))
            return generate_reasoning(SEED, wanted)
        return load_math(file)

    def score(self, prompt: Prompt, answer: str | None) -> float:
        from components.environments.math.grader import reward  # which may import what is heavy

        return reward(prompt.answer, answer)

    def solve(self, prompt: Prompt) -> list[str]:
        boxed = f"\\boxed{{{prompt.answer}}}"
        return [f"Final Answer: {boxed}" if self.params.react else boxed]

    def run(self, texts: list[str]) -> str:
        (code,) = texts
        fenced = _FENCED.fullmatch(code.strip())
        result = self.python.run(fenced[1] if fenced else code)
        silent = "(no output: print what you want to see)" if result.status == Status.OK else result.status
        return result.output.rstrip() or silent

    def answer_in(self, text: str) -> str:
        return last_boxed(text) or text
