"""Gold proves the environment: over whole data files, the gold answer scores 1 and a corrupted one 0.

Each row is judged through the environment, in three forms that models write: the answer in a box, the
answer in a sentence, and a wrong answer in a box. A fourth figure is the share that is read as mathematics.

Run from the repository: python -m bench.math_gold FILE...
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.results import record
from components.environments.base import Prompt
from components.environments.math import MathWithPython
from components.environments.math.equality.forms import read
from components.environments.math.equality.same import same
from components.environments.math.problems import load_math
from components.environments.verify import verify


def corrupt(answer: str) -> str:
    """A wrong answer of the same form: its last digit (units apart) raised by one, else its word or value changed."""
    if digits := list(re.finditer(r"\d", answer.split("\\mbox")[0])):
        at = digits[-1].start()
        return answer[:at] + str((int(answer[at]) + 1) % 10) + answer[at + 1 :]
    if text := re.search(r"(\\text\{\(?)\w+", answer):
        return answer[: text.start()] + text[1] + "wrong" + answer[text.end() :]
    return f"{answer} + 1"


def answers(prompt: Prompt) -> dict[str, str]:
    """What a model may write, by form."""
    return {
        "box": f"<think> hm </think> So it is $\\boxed{{{prompt.answer}}}$.",
        "sentence": f"<think> hm </think> The final answer is ${prompt.answer}$.",
        "wrong": f"<think> hm </think> So it is $\\boxed{{{corrupt(prompt.answer)}}}$.",
    }


def judge(prompts: list[Prompt]) -> dict[str, list[tuple[Prompt, object]]]:
    """The rows that do not come out as they should, with what came out, by form."""
    environment = MathWithPython()

    def outcome(task: tuple[Prompt, str]) -> float | str | None:
        prompt, text = task
        result = verify(environment, prompt, environment.step(environment.reset(prompt), text).answer)
        return result.status if result.reward is None else result.reward

    bad: dict[str, list[tuple[Prompt, object]]] = {}
    with ThreadPoolExecutor(environment.parallel_scores) as threads:
        for form, right in (("box", 1.0), ("sentence", 1.0), ("wrong", 0.0)):
            found = list(threads.map(outcome, [(prompt, answers(prompt)[form]) for prompt in prompts]))
            bad[form] = [(prompt, one) for prompt, one in zip(prompts, found, strict=True) if one != right]
    bad["read"] = [(prompt, "text") for prompt in prompts if not _is_read(prompt.answer)]
    return bad


def _is_read(gold: str) -> bool:
    """Whether a gold answer is read as mathematics and equals itself; words and letters are compared as text."""
    return any(same(one, other) for one in read(gold) for other in read(gold, answer=True))


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        prompts = load_math(path)
        for form, rows in judge(prompts).items():
            record({f"math_gold_{path.stem}_{form}": 1 - len(rows) / len(prompts)})
            for prompt, found in rows:
                print(f"    {prompt.prompt_id} gold {prompt.answer!r}, corrupted {corrupt(prompt.answer)!r}: {found}")


if __name__ == "__main__":
    main(sys.argv[1:])
