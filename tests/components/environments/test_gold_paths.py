"""Every registered environment: its gold path proves it, a corrupted answer does not, and its module is light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.environments import ENVIRONMENTS
from components.environments.base import Environment
from components.environments.verify import verify

HEAVY = {"torch", "transformers", "sympy", "scipy", "httpx", "bm25s", "math_verify", "bfcl_eval", "pydantic_monty"}
BUILT_IN = ["calculator", "devices", "functions", "math", "multihop", "search"]
SIZES = {"train_prompts": 6, "val_prompts": 2, "test_prompts": 2}


def test_every_environment_can_be_known_without_what_it_runs_on():
    code = (
        "import sys; from components.environments import ENVIRONMENTS, dataset, verify\n"
        "print(sorted(kind.name for kind in map(ENVIRONMENTS.__getitem__, ENVIRONMENTS)), end='')\n"
        f"print({HEAVY!r} & {{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr, end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (str(BUILT_IN), "set()")


def section(name: str, folder: Path) -> dict:
    """What an environment needs besides its name."""
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"files": {"train": [str(folder / "rows.jsonl")]}}
    return {"search": files | {"corpus": str(folder / "rows.jsonl")}, "math": files}.get(name, {})


CATEGORIES = [
    ("functions", {"categories": [c]}) for c in ("multi_turn_miss_func", "parallel", "irrelevance", "live_relevance")
]
CASES = [*((name, {}) for name in BUILT_IN if name != "functions"), *CATEGORIES]


@pytest.mark.parametrize("react", [False, True])
@pytest.mark.parametrize(("name", "keys"), CASES, ids=lambda case: str(case)[:30])
def test_gold_path_scores_1_and_a_corrupted_answer_0(name, keys, react, tmp_path):
    for module in {"math": ["math_verify", "pydantic_monty"], "functions": ["bfcl_eval"]}.get(name, []):
        pytest.importorskip(module)
    kind = ENVIRONMENTS[name]
    if react and not kind.needs_model:
        pytest.skip("the tiny policy knows no such form")
    tree = {"name": name} | SIZES | section(name, tmp_path) | keys | ({"react": True} if react else {})
    environment = kind(kind.Params.model_validate(tree), tmp_path)
    kind.check(SimpleNamespace(environment=environment.params))
    prompts = [prompt for split in environment.prompts().values() for prompt in split]
    assert len(prompts) == 10
    for prompt in prompts:
        answer = play(environment, prompt)
        assert verify(environment, prompt, answer).reward == 1.0, prompt
        assert verify(environment, prompt, corrupted(name, answer)).reward == 0.0, prompt
        assert verify(environment, prompt, None).reward == 0.0


def play(environment: Environment, prompt) -> str | None:
    """The final answer of the gold path; every turn of it is needed."""
    state, turns = environment.reset(prompt), environment.solve(prompt)
    for number, turn in enumerate(turns, start=1):
        transition = environment.step(state, turn)
        assert transition.done == (number == len(turns))
        state = transition.state
    return transition.answer


def corrupted(name: str, answer: str) -> str:
    """An answer of the same form that is wrong."""
    if name == "functions":
        calls = [call for turn in json.loads(answer) for step in turn for call in step]
        return json.dumps([[calls[:-1]]] if calls else [[[{"name": "any", "arguments": {}}]]])
    return f"{answer}1"
