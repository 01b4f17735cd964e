"""Function calls, judged as the Berkeley leaderboard does.

Multi-turn: the calls of the rollout and those of the ground truth are run side by side on API objects of their own.
After every turn of the user in which the ground truth calls something, the objects must be equal, and whatever the
ground truth's calls returned must have been returned to the rollout by then. Both checks are the package's own.

Single-turn: the package's syntax-tree checker compares each call with the possible answers. Where no function fits
("irrelevance") any call is wrong; where one does ("relevance") some call is right.

Two differences from the leaderboard, both for training. A function that was not offered yet cannot be called. And a
rollout that ends in a malformed call has no answer, so that it is wrong also where no call is asked for.

The calls run in worker processes: a verdict that takes too long, or whose process dies, is none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.base import Prompt
from components.environments.functions import bfcl
from components.environments.functions.calls import Turns, read_turns
from components.environments.parsing import Call
from components.environments.verify import score_in_worker
from components.workers.pool import PerProcess, Workers

CPU_SECONDS, TIMEOUT_SECONDS = 10.0, 60.0  # of a verdict; by the clock, for a busy machine


def reward(prompt: Prompt, answer: str | None) -> float:
    """1 where the calls do what was asked, else 0; `answer` is the text that the environment made of the calls.

    Usable from any thread; one pool of workers, with one process per CPU, serves all.

    Raises:
        TimeoutError: if the verdict took `CPU_SECONDS` or `TIMEOUT_SECONDS`.
        VerificationError: if it failed.
    """
    return 0.0 if answer is None else score_in_worker(_workers.get(), [prompt.answer, prompt.metadata, answer])


def do_what_was_asked(gold: str, task: Mapping[str, Any], answer: str) -> bool:
    """Whether the calls do what was asked; run by the workers.

    Args:
        gold: The prompt's answer.
        task: Its metadata.
        answer: What the environment made of the calls.
    """
    turns, category = read_turns(answer), task["category"]
    if task["classes"]:
        return same_effect(task, turns, read_turns(gold))
    calls = [call for turn in turns for step in turn for call in step]
    if category.endswith("relevance"):  # also "irrelevance"
        return bool(calls) == (not category.endswith("irrelevance"))
    return _same_calls(gold, task, calls)


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
        known = [function["name"] for function in bfcl.offered(task, number)]
        for step in steps:
            ours, results = bfcl.run_calls(ours, step, known)
            seen += results
        theirs, wanted = bfcl.run_calls(theirs, [call for step in gold_steps for call in step], known)
        if not wanted:
            continue  # nothing can be done here: the leaderboard leaves such a turn unchecked
        if not any(steps) or not checker.state_checker(ours, theirs)["valid"]:
            return False
        if not checker.response_checker(seen, wanted, number)["valid"]:
            return False
    return True


def _same_calls(gold: str, task: Mapping[str, Any], calls: Sequence[Call]) -> bool:
    checker = bfcl.ast_checker()
    written = [{call.name: call.arguments} for call in calls]
    possible = json.loads(gold)
    verdict = checker.ast_checker(
        task["functions"], written, possible, checker.Language.PYTHON, task["category"], bfcl.MODEL
    )
    return bool(verdict["valid"])


_workers = PerProcess(
    lambda: Workers(
        "components.environments.functions.grade_calls:grade", os.cpu_count() or 1, TIMEOUT_SECONDS, CPU_SECONDS
    )
)
