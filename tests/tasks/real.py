"""What the tests of the tasks for real chat models need: data, a tiny chat model, and an engine that plays a script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from components.environments.base import Environment, Prompt
from components.environments.functions.bfcl import offered, tool_schema
from components.environments.functions.calls import hermes
from components.environments.functions.gold import gold_turns
from components.environments.functions.prompts import load_bfcl
from components.params.root import Params, compose
from components.policy.base import PolicyParams
from components.policy.checkpoint import load_model, save_model
from components.policy.engines.base import Completion, Engine, Request
from components.policy.renderer import Renderer
from components.policy.tiny import build_model
from tests.components.environments.search.test_search_rendering import KEEPS, renderer

TOWNS = {"Ada": "New Port City", "Ben": "Old Lake Town", "Cyd": "Far Hill Camp", "Dee": "Low Sand Bay"}
PEOPLE = [f"{first} {last}" for first in TOWNS for last in ("North", "South", "East", "West")]
CATEGORIES = ["multi_turn_base", "multi_turn_miss_func"]
TURN = re.compile(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", re.DOTALL)

Script = Callable[[str, int], str]  # the history's text and the turn's seed to the turn


def chat_policy(folder: Path, template: str = KEEPS, words: list[str] | None = None) -> Path:
    """A tiny Qwen3 with random weights under a chat template with tools; each of `words` is one token."""
    tokenizer = renderer(template).tokenizer
    tokenizer.add_tokens(words or [])
    torch.manual_seed(0)
    model = build_model(PolicyParams(layers=1, hidden=16), tokenizer)
    model.config.max_position_embeddings = 32768
    save_model(model, folder)
    tokenizer.save_pretrained(folder)
    return folder


def real_params(folder: Path, policy: Path, environment: dict[str, Any], **sections: dict[str, Any]) -> Params:
    """One iteration on four prompts; a single optimiser step, so that its importance ratios are exactly 1."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"iterations": 1, "runs_dir": str(folder / "runs"), "data_dir": str(folder / "data")},
        "environment": {"train_prompts": 8, "val_prompts": 2, "test_prompts": 2, **environment},
        "policy": {"path": str(policy)},
        "engine": {"batch_size": 16, "max_turn_tokens": 600, "max_tokens": 12000},
        "allocation": {"pool": 4, "root_units": 12, "continuations": 1, "group_size": 4},
        "predictor": {"steps": 5, "hidden": 8},
        "update": {"epochs": 1, "minibatches": 1},
        "evaluation": {"samples": 2},
        "tracking": {"mlflow": False},
    }
    for section, values in sections.items():
        tree[section] |= values
    return compose(tree)


def search_task(folder: Path) -> dict[str, Any]:
    """Questions about people, and a corpus that says where they were born."""
    born = [(person, TOWNS[person.split()[0]]) for person in PEOPLE]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"title": p, "text": f"{p} was born in {town}."}) + "\n" for p, town in born)
    )
    (folder / "questions.jsonl").write_text(
        "".join(json.dumps({"question": f"Where was {p} born?", "answer": town}) + "\n" for p, town in born)
    )
    files = {"train": [str(folder / "questions.jsonl")]}
    return {"name": "search", "files": files, "corpus": str(folder / "corpus.jsonl"), "top_k": 1, "max_turns": 4}


def math_task(folder: Path) -> dict[str, Any]:
    rows = [{"problem": f"What is {n} * {n + 3}?", "answer": str(n * (n + 3))} for n in range(11, 27)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": "math", "files": {"train": [str(folder / "problems.jsonl")]}, "max_turns": 3}


def functions_task(folder: Path) -> dict[str, Any]:
    return {"name": "functions", "categories": CATEGORIES, "train_prompts": 4, "val_prompts": 1, "test_prompts": 1}


TASKS = {"search": search_task, "math": math_task, "functions": functions_task}


def schemas(categories: list[str]) -> list[str]:
    """The functions of some categories as templates show them; none where bfcl-eval is not installed."""
    if find_spec("bfcl_eval") is None:
        return []
    documents = [function for prompt in load_bfcl(categories) for function in offered(prompt.metadata, 99)]
    return list(dict.fromkeys(json.dumps(tool_schema(document), ensure_ascii=False) for document in documents))


def search_script(history: str, seed: int) -> str:
    """Searches once, then answers right, or with half of the words, or wrong."""
    if "<tool_response>" not in history:
        person = re.findall(r"Where was (\w+ \w+) born", history)[0]
        call = json.dumps({"name": "search", "arguments": {"query": f"{person} born"}})
        return f"<think>\nI look {seed % 5}.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
    town = re.findall(r"was born in ([\w ]+)\.", history)[-1]
    kinds = (town, f"{town.partition(' ')[2]} Bank", town.split()[0], "Nowhere")  # F1 of 1, 2/3, 1/2 and 0
    return f"<think>\nI know.\n</think>\n\n<answer>{kinds[seed % 4]}</answer>"


def math_script(history: str, seed: int) -> str:
    """Computes, then tells the result or, three times in four, another number."""
    if "<tool_response>" not in history:
        first, second = re.findall(r"What is (\d+) \* (\d+)\?", history)[0]
        call = json.dumps({"name": "python", "arguments": {"code": f"x = {seed % 5}\nprint({first} * {second})"}})
        return f"<tool_call>\n{call}\n</tool_call>"
    result = int(re.findall(r"<tool_response>\n(\d+)", history)[-1])
    return f"It is \\boxed{{{result + seed % 4}}}."


def functions_script(prompts: list[Prompt]) -> Script:
    """Plays the ground truth, and now and then ends a turn of the user too early."""

    def script(history: str, seed: int) -> str:
        prompt = next(p for p in prompts if f"<|im_start|>user\n{p.question}<|im_end|>" in history)
        gold, said = gold_turns(prompt), TURN.findall(history)
        over = said.count("Done.")
        step = len(said) - (len(said) - said[::-1].index("Done.") if over else 0)
        return hermes(gold[over][step]) if step < len(gold[over]) and seed % 8 else "Done."

    return script


def builtin_script(environment: Environment, prompts: list[Prompt]) -> Script:
    """Plays the gold path, and now and then ends it too early with a wrong answer."""
    by_question = {prompt.question: prompt for prompt in prompts}

    def script(history: str, seed: int) -> str:
        prompt = by_question[history.partition("<|user|> ")[2].partition(" <|end|>")[0]]
        turn = environment.solve(prompt)[history.count("<|assistant|>") - 1]
        return turn if seed % 4 else "<think> done </think> answer nothing"

    return script


class Scripted(Engine):
    """An engine that says what a script tells, with the log-probabilities that its policy gives it."""

    batch_size = 16
    prompt_tokens = cached_tokens = 0

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []

    def load(self, policy: Path) -> None:
        self.model, self.renderer = load_model(policy).eval(), Renderer.load(policy)

    def generate(self, requests: list[Request]) -> list[Completion]:
        self.requests += requests
        return [self._complete(request) for request in requests]

    @torch.inference_mode()
    def _complete(self, request: Request) -> Completion:
        text = self.script(self.renderer.tokenizer.decode(request.token_ids), request.seed)
        ids = [*self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"], self.renderer.eos_id]
        assert len(ids) <= request.max_tokens
        begin = len(request.token_ids)
        states = self.model.get_decoder()(input_ids=torch.tensor([request.token_ids + ids])).last_hidden_state
        logits = self.model.get_output_embeddings()(states[0, begin - 1 : -1])
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        return Completion(ids, logprobs.tolist(), True)
