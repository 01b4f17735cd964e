"""Every gold path of the function-calling data through the environment and the verifier, and corrupted ones.

For each category: the share of gold paths that score 1, of paths with one call dropped or one argument changed that
score 0, and the rows where it is otherwise. For the multi-turn categories each verdict is compared with that of the
package's own checker, which runs the calls its own way.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.functions_gold
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from bench.results import record
from components.datasets.functions import CATEGORIES, load_bfcl
from components.environments import bfcl
from components.environments.base import Prompt
from components.environments.bfcl_gold import gold_turns, play
from components.environments.calls import Turns, read_turns
from components.environments.functions import Functions
from components.environments.parsing import Call
from components.verifiers.functions import FunctionCalls


def answer_of(prompt: Prompt, turns: Turns) -> str | None:
    """What the environment hands to the verifier after these calls."""
    environment = Functions()
    state = environment.reset(prompt)
    for text in play(turns):
        transition = environment.step(state, text)
        state = transition.state
        if transition.done:
            return transition.answer
    return None


def corrupt(turns: Turns) -> Iterator[tuple[str, Turns]]:
    """The turns with the last call dropped, and with the first argument that there is changed."""
    places = [(t, s, c) for t, turn in enumerate(turns) for s, step in enumerate(turn) for c, _ in enumerate(step)]
    if places:
        dropped: Any = deepcopy(turns)
        t, s, c = places[-1]
        del dropped[t][s][c]
        dropped[t] = [step for step in dropped[t] if step]
        yield "dropped", dropped
    for t, s, c in places:
        call = turns[t][s][c]
        if call.arguments:
            changed: Any = deepcopy(turns)
            key, value = next(iter(call.arguments.items()))
            changed[t][s][c] = Call(call.name, {**call.arguments, key: other(value)})
            yield "changed", changed
            return


def other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list():
            return [*value, *value[:1]] if value else ["x"]
        case dict():
            return {**value, "x": "x"}
    return "x"


def reference_verdict(prompt: Prompt, turns: Turns) -> bool:
    """The package's own verdict; what it leaves in its globals is removed."""
    utils = __import__(f"{bfcl.multi_turn_checker().__package__}.multi_turn_utils", fromlist=["_"])
    before = set(vars(utils))
    entry = {
        "id": prompt.metadata["source_id"],
        "initial_config": prompt.metadata["config"],
        "involved_classes": prompt.metadata["classes"],
    }

    def text(calls: list[Call]) -> list[str]:
        return [f"{c.name}({', '.join(f'{key}={value!r}' for key, value in c.arguments.items())})" for c in calls]

    gold = [[line for step in steps for line in text(step)] for steps in read_turns(prompt.answer)]
    written = [[text(list(step)) for step in steps] for steps in turns]
    try:
        with contextlib.redirect_stdout(None):
            verdict = bfcl.multi_turn_checker().multi_turn_checker(written, gold, entry, "", "reference")
        return bool(verdict["valid"])
    finally:
        for name in set(vars(utils)) - before:
            delattr(utils, name)


def main() -> None:
    verifier, numbers, agree, judged = FunctionCalls(), {}, 0, 0
    for category in CATEGORIES:
        prompts, passed, exceptions = load_bfcl([category]), {"gold": 0, "dropped": 0, "changed": 0}, []
        counts = dict.fromkeys(passed, 0)
        for prompt in prompts:
            if category.endswith("relevance"):
                silent, calling = [[]], [[[Call("any", {})]]]
                variants: list[tuple[str, Turns]] = [("gold", silent), ("changed", calling)]
                if category == "live_relevance":
                    variants = [("gold", calling), ("changed", silent)]
            else:
                gold = gold_turns(prompt)
                variants = [("gold", gold), *corrupt(gold)]
            for kind, turns in variants:
                score = verifier.score(prompt, answer_of(prompt, turns))
                counts[kind] += 1
                if prompt.metadata["classes"]:
                    judged += 1
                    agree += reference_verdict(prompt, turns) == bool(score)
                if score == float(kind == "gold"):
                    passed[kind] += 1
                else:
                    exceptions.append((prompt.metadata["source_id"], kind))
        for kind, count in counts.items():
            if count:
                numbers[f"functions_{category}_{kind}_right"] = passed[kind] / count
        print(json.dumps({category: counts, "otherwise": exceptions}))
    record({**numbers, "functions_agreement_with_package": agree / judged})


if __name__ == "__main__":
    main()
