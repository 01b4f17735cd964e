"""Every gold path of the function-calling data through the environment, and corrupted ones.

For each category: the share of gold paths that score 1, of paths with one call dropped or one argument changed that
score 0, and the rows where it is otherwise. For the multi-turn categories each verdict is compared with that of the
package's own checker, which runs the calls its own way.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.functions_gold
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from bench.results import record
from components.environments.base import Prompt
from components.environments.functions import Functions, bfcl
from components.environments.functions.calls import Turns, read_turns
from components.environments.functions.gold import gold_turns, play
from components.environments.functions.prompts import CATEGORIES, MULTI_TURN, load_bfcl
from components.environments.parsing import Call


def answer_of(prompt: Prompt, turns: Turns) -> str | None:
    """What the environment scores after these calls."""
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


def variants(prompt: Prompt) -> Iterator[tuple[str, Turns]]:
    """The gold path and the corrupted ones; where no call is asked for, any is the corrupted one."""
    yield "gold", gold_turns(prompt)
    if prompt.metadata["category"].endswith("irrelevance"):
        yield "changed", [[[Call("any", {})]]]
    yield from corrupt(gold_turns(prompt))


def main() -> None:
    environment, agreed = Functions(), list[bool]()
    right: dict[str, list[bool]] = {}
    for category in CATEGORIES:
        group = "multi_turn" if category in MULTI_TURN else "single_turn"
        counts: dict[str, list[bool]] = {}
        for prompt in load_bfcl([category]):
            for kind, turns in variants(prompt):
                score = environment.score(prompt, answer_of(prompt, turns))
                as_wanted = score == float(kind == "gold")
                counts.setdefault(kind, []).append(as_wanted)
                right.setdefault(f"functions_{group}_{kind}_right", []).append(as_wanted)
                if prompt.metadata["classes"]:
                    agreed.append(reference_verdict(prompt, turns) == bool(score))
                if not as_wanted:
                    print(f"  {prompt.metadata['source_id']}: {kind} scores {score:g}: {difference(prompt, turns)}")
        print(category, {kind: f"{sum(values)} of {len(values)}" for kind, values in counts.items()})
    shares = {name: sum(values) / len(values) for name, values in right.items()}
    record({**shares, "functions_agreement_with_package": sum(agreed) / len(agreed)})


def difference(prompt: Prompt, turns: Turns) -> str:
    """The calls that the gold path has not."""
    gold = [call for steps in gold_turns(prompt) for step in steps for call in step]
    return str([(c.name, c.arguments) for steps in turns for step in steps for c in step if c not in gold])[:200]


if __name__ == "__main__":
    main()
