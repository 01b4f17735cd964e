"""The gold path of the leaderboard's prompts: it proves the environment and the verifier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.base import Prompt
from components.environments.functions.calls import Turns, hermes, read_turns
from components.environments.parsing import Call


def gold_turns(prompt: Prompt) -> list[list[list[Call]]]:
    """Gold calls by turn of the user and step of the policy."""
    task = prompt.metadata
    if task["classes"]:
        return read_turns(prompt.answer)
    calls = gold_calls(task["functions"], json.loads(prompt.answer))
    if task["category"] == "live_relevance":  # any call is right
        calls = [Call(task["functions"][0]["name"], {})]
    return [[calls] if calls else []]


def play(turns: Turns) -> list[str]:
    """Texts of the policy's turns that make the calls, one turn per step, and end each turn of the user."""
    return [text for steps in turns for text in (*(hermes(step) for step in steps), "Done.")]


def gold_calls(functions: Sequence[Mapping[str, Any]], possible: Sequence[Mapping[str, Any]]) -> list[Call]:
    """Calls with the first possible value of every argument; the empty text stands for none, where none is needed."""
    documents = {function["name"]: function["parameters"] for function in functions}
    calls = []
    for answer in possible:
        for name, arguments in answer.items():
            parameters = documents[name]
            chosen = {}
            for key, values in arguments.items():
                given = [value for value in values if value != ""]
                if key in parameters["required"] and values:
                    chosen[key] = _given((given or values)[0])
                elif values and values[0] != "" and not ("" in values and key not in parameters["properties"]):
                    chosen[key] = _given(values[0])
            calls.append(Call(name, chosen))
    return calls


def _given(value: Any) -> Any:
    """A possible value, whose objects have possible values in turn for each field, one level deep."""
    match value:
        case dict():
            return {key: values[0] for key, values in value.items() if values and values[0] != ""}
        case list():
            return [_given(item) if isinstance(item, dict) else item for item in value]
    return value
