"""The Berkeley function-calling leaderboard, v4: prompts from the files that the package `bfcl-eval` carries.

The categories of another programming language, and those that need a search engine or a memory store, are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments import bfcl
from components.environments.base import Prompt
from components.environments.calls import read_calls, write_turns
from components.errors import UserError
from components.storage import value_hash

MULTI_TURN = ("multi_turn_base", "multi_turn_long_context", "multi_turn_miss_func", "multi_turn_miss_param")
SINGLE_TURN = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple",
    "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
CATEGORIES = (*MULTI_TURN, *SINGLE_TURN)


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
    """Train and test prompts, by default 80 to 20 in each category, by the ids alone.

    The multi-turn categories are four versions of the same scenarios: all versions of one fall on the same side.
    """
    split: dict[str, list[Prompt]] = {"train": [], "test": []}
    for category in dict.fromkeys(p.metadata["category"] for p in prompts):
        members = [p for p in prompts if p.metadata["category"] == category]
        ranked = sorted(members, key=lambda p: hashlib.sha256(_scenario(p).encode()).hexdigest())
        chosen = {p.prompt_id for p in ranked[: round(test_share * len(ranked))]}
        for prompt in members:
            split["test" if prompt.prompt_id in chosen else "train"].append(prompt)
    return split


def _scenario(prompt: Prompt) -> str:
    if prompt.metadata["classes"]:
        return str(prompt.metadata["source_id"]).rpartition("_")[2]
    return prompt.prompt_id


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
