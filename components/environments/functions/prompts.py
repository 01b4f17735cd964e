"""The Berkeley function-calling leaderboard, v4: prompts from the files that the package `bfcl-eval` carries.

The categories of another programming language, and those that need a search engine or a memory store, are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.base import Prompt
from components.environments.functions import bfcl
from components.environments.functions.calls import read_calls, write_turns
from components.errors import UserError
from components.storage import value_hash

MULTI_TURN = ("multi_turn_base", "multi_turn_long_context", "multi_turn_miss_func", "multi_turn_miss_param")
SINGLE_TURN = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple",
    "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
CATEGORIES = (*MULTI_TURN, *SINGLE_TURN)
SCENARIOS = 200  # of every multi-turn category, numbered from 0


def load_bfcl(categories: Sequence[str] = MULTI_TURN) -> list[Prompt]:
    """Prompts of the categories, in the order of the files; rows that repeat an earlier one are left out.

    The answer of a multi-turn prompt is the JSON text of its ground truth's calls, that of a single-turn one the JSON
    text of the possible answers. Metadata: category, source_id, turns (a list of [role, content] for every turn of the
    user), classes and config (the APIs and their beginning), long_context, held_back (functions that appear later, by
    turn), functions (documents of those that belong to no class).

    Raises:
        UserError: if a category is unknown, the package is not installed, or a row is damaged.
    """
    prompts: dict[str, Prompt] = {}
    for category in categories:
        if category not in CATEGORIES:
            raise UserError(f"category '{category}' is not known; choose one of {', '.join(CATEGORIES)}")
        file = f"BFCL_v4_{category}.json"
        rows = bfcl.read_data(file)
        judged_by_count = category.endswith("relevance")  # also "irrelevance": there is no ground truth
        answers = {}
        if not judged_by_count:
            answers = {row["id"]: row.get("ground_truth") for row in bfcl.read_data(f"possible_answer/{file}")}
        for number, row in enumerate(rows):
            try:
                prompt = _prompt(category, row, [] if judged_by_count else answers[row["id"]])
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{file}, row {number}: {type(error).__name__}: {error}") from error
            prompts.setdefault(prompt.prompt_id, prompt)
    return list(prompts.values())


def split_bfcl(prompts: Sequence[Prompt], test_share: float = 0.2) -> dict[str, list[Prompt]]:
    """Train and test prompts, by default 80 to 20, each by its own content, whatever else is in the list.

    The multi-turn categories are four versions of the same scenarios: all versions of one fall on the same side, and
    the shares are exact. Among single-turn prompts those of the same question do, and the shares are close.
    """
    ranked = sorted((str(number) for number in range(SCENARIOS)), key=_fraction)
    scenarios = set(ranked[: round(test_share * SCENARIOS)])
    split: dict[str, list[Prompt]] = {"train": [], "test": []}
    for prompt in prompts:
        if prompt.metadata["classes"]:
            held_out = prompt.metadata["source_id"].rpartition("_")[2] in scenarios
        else:
            held_out = _fraction(prompt.question) < test_share
        split["test" if held_out else "train"].append(prompt)
    return split


def _fraction(text: str) -> float:
    """A number in [0, 1), drawn by the text's hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _prompt(category: str, row: Mapping[str, Any], truth: Any) -> Prompt:
    turns = [[[message["role"], message["content"]] for message in turn] for turn in row["question"]]
    task: dict[str, Any] = {
        "category": category,
        "turns": turns,
        "classes": row.get("involved_classes", []),
        "config": row.get("initial_config", {}),
        "long_context": category == "multi_turn_long_context",
        "held_back": row.get("missed_function", {}),
        "functions": row.get("function", []),
    }
    if task["classes"]:
        documents = {f["name"]: f for name in task["classes"] for f in bfcl.functions_of(name)}
        for turn, names in task["held_back"].items():
            turns[int(turn)] = [["user", bfcl.additional_functions([documents[name] for name in names])]]
        parameters = {name: list(f["parameters"]["properties"]) for name, f in documents.items()}
        gold = [read_calls(f"[{', '.join(calls)}]", parameters) for calls in truth]
        answer = write_turns([[calls] if calls else [] for calls in gold])
    else:
        answer = json.dumps(truth)
    question = "\n".join(content for _, content in turns[0])
    content = value_hash({"question": question, "answer": answer, "metadata": task})[:16]
    return Prompt(content, question, answer, {**task, "source_id": row["id"]})
