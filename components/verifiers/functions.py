"""Function calls, judged as the Berkeley leaderboard does.

Multi-turn: the calls of the rollout and those of the ground truth are run side by side on API objects of their own.
After every turn of the user in which the ground truth calls something, the objects must be equal, and whatever the
ground truth's calls returned must have been returned to the rollout by then. Both checks are the package's own.

Single-turn: the package's syntax-tree checker compares each call with the possible answers. Where no function fits
("irrelevance") any call is wrong; where one does ("relevance") some call is right.

Two differences from the leaderboard, both for training. A function that was not offered yet cannot be called. And a
malformed call ends the rollout without an answer, so that it is wrong also where no call is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments import bfcl
from components.environments.base import Prompt
from components.environments.calls import Turns, read_turns
from components.environments.functions import offered, run_calls
from components.environments.parsing import Call


class FunctionCalls:
    """1 where the calls do what was asked, else 0; `answer` is the text that the environment made of the calls."""

    def score(self, prompt: Prompt, answer: str | None) -> float:
        if answer is None:
            return 0.0
        turns, category = read_turns(answer), prompt.metadata["category"]
        if prompt.metadata["classes"]:
            return float(same_effect(prompt.metadata, turns, read_turns(prompt.answer)))
        calls = [call for turn in turns for step in turn for call in step]
        if category.endswith("relevance"):  # also "irrelevance"
            return float(bool(calls) == (not category.endswith("irrelevance")))
        return float(_same_calls(prompt, calls))


def same_effect(task: Mapping[str, Any], turns: Turns, gold: Turns) -> bool:
    """Whether the calls lead to the states and the results of the ground truth, turn by turn.

    Args:
        task: The prompt's metadata.
        turns, gold: Calls of the rollout and of the ground truth.

    Raises:
        ValueError: if the ground truth has not one list of calls for every turn of the user.
    """
    if len(gold) != len(task["turns"]):
        raise ValueError(f"{task['source_id']}: the ground truth has {len(gold)} turns, the task {len(task['turns'])}")
    if len(turns) != len(gold):
        return False
    checker = bfcl.multi_turn_checker()
    ours: Mapping[str, Any] = bfcl.load_apis(task["classes"], task["config"], task["long_context"])
    theirs, seen = ours, list[str]()
    for number, (steps, gold_steps) in enumerate(zip(turns, gold, strict=True)):
        known = [function["name"] for function in offered(task, number)]
        for step in steps:
            ours, results = run_calls(ours, step, known)
            seen += results
        theirs, wanted = run_calls(theirs, [call for step in gold_steps for call in step], known)
        if not wanted:
            continue  # nothing can be done here: the leaderboard leaves such a turn unchecked
        if not any(steps) or not checker.state_checker(ours, theirs)["valid"]:
            return False
        if not checker.response_checker(seen, wanted, number)["valid"]:
            return False
    return True


def _same_calls(prompt: Prompt, calls: Sequence[Call]) -> bool:
    checker, task = bfcl.ast_checker(), prompt.metadata
    written = [{call.name: call.arguments} for call in calls]
    possible = json.loads(prompt.answer)
    verdict = checker.ast_checker(
        task["functions"], written, possible, checker.Language.PYTHON, task["category"], bfcl.MODEL
    )
    return bool(verdict["valid"])
