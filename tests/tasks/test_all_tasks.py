"""Every task through all stages of an iteration: what is sampled, judged, branched and learned holds together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from components import build
from components.build import make_environment
from components.environments import search
from components.environments.base import Prompt
from components.environments.search.retrieval import Bm25
from components.errors import UserError
from components.params.load import merge
from components.params.root import Params, compose
from components.policy.engines.base import Completion, Request
from components.policy.engines.transformers.engine import TransformersEngine
from components.storage import read_json
from components.tree.anchors import SUCCESS
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason
from components.tree.values import own_rollouts
from flows.cli import evaluate
from tasks.inputs import prompts, read_forest
from tasks.prepare import warm_up_policy
from tasks.run import Run, open_run
from tests.components.environments.search.test_search_rendering import KEEPS
from tests.tasks.pipeline import train
from tests.tasks.real import (
    CATEGORIES,
    TASKS,
    Script,
    Scripted,
    builtin_script,
    chat_policy,
    functions_script,
    math_script,
    real_params,
    schemas,
    search_script,
)


class Recording(TransformersEngine):
    """The embedded engine, which keeps what it was asked."""

    requests: list[Request]

    def generate(self, requests: list[Request]) -> list[Completion]:
        self.requests += requests
        return super().generate(requests)


def run_once(params: Params, engine: Recording | Scripted, monkeypatch, name: str = "r") -> tuple[Run, Forest]:
    monkeypatch.setattr(build, "_engine", lambda section: engine)
    run = open_run(params, name)
    train(run)
    return run, read_forest(run.iteration(0) / "forest.parquet")


def recording(params: Params) -> Recording:
    engine = Recording(params.engine)
    engine.requests = []
    return engine


def assert_sound(run: Run, forest: Forest, requests: list[Request]) -> None:
    """What holds for every task and every policy."""
    line, params = run.metrics()[0], run.params
    leaves = [forest.nodes[row] for row in forest.leaves_L.tolist()]
    assert leaves
    assert line["budget/leaves"] == len(leaves)
    assert 0 < line["budget/units"] <= params.allocation.budget.units
    for leaf in leaves:
        assert leaf.stop_reason in list(StopReason)
        assert (leaf.reward is not None) == (leaf.status == Status.OK)
        assert leaf.stop_reason == StopReason.ANSWERED or not leaf.reward
    asked = {request.seed: request.token_ids for request in requests}
    for node in forest.nodes:
        if node.parent_id >= 0:  # the engine was given exactly what the tree holds above the turn
            assert asked[node.seed] == forest.prefix_ids(node.parent_id)
    for node in continued(forest):
        anchor = forest.nodes[node.anchor_id]
        assert (anchor.origin, anchor.is_terminal) == (Origin.FACTUAL, False)
        assert forest.prefix_ids(node.node_id) == forest.prefix_ids(anchor.node_id) + node.token_ids
    for row in forest.leaves_L.tolist():
        assert_replays(params, forest, row)


def continued(forest: Forest) -> list[Node]:
    """First turns of continuations from prefixes."""
    return [n for n in forest.nodes if n.origin == Origin.COUNTERFACTUAL and n.parent_id == n.anchor_id]


def assert_replays(params: Params, forest: Forest, leaf: int) -> None:
    """The turns of a rollout, taken again from the start, lead to the same observations and the same answer."""
    environment, prompt = make_environment(params), prompts(params, "train")[forest.nodes[leaf].prompt_id]
    state = environment.reset(prompt)
    for row in forest.path(leaf)[1:]:
        node = forest.nodes[row]
        if node.stop_reason == StopReason.LENGTH:
            return
        transition = environment.step(state, node.action)
        state = transition.state
        assert (transition.stop_reason, transition.answer) == (node.stop_reason, node.answer)
        assert transition.observation == node.observation


def assert_mixed_and_learned(run: Run, forest: Forest) -> None:
    """A script that calls the tool and is now right, now wrong, is branched, and an update learns from it."""
    line, nodes = run.metrics()[0], [n for n in forest.nodes if n.parent_id >= 0]
    assert all(n.status == Status.OK for n in nodes)
    assert all(n.observation for n in nodes if not n.is_terminal)
    rewards = {n.reward for n in nodes if n.is_terminal}
    assert {0.0, 1.0} <= rewards
    assert continued(forest)
    assert line["budget/continuations"] == len(continued(forest))
    assert line["effective_ratio/prompts"] > 0
    # One step from the very weights that sampled: each ratio is 1, for which no token may have been mislaid.
    assert line["policy/optimizer_steps"] == 1
    assert line["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert line["policy/clip_fraction"] == 0
    assert line["policy/grad_norm"] > 0


@pytest.mark.parametrize("task", ["calculator", "devices"])
def test_built_in_task_warmed_up_and_scripted(params, tmp_path, monkeypatch, task):
    changes = {
        "run": {"iterations": 1, "data_dir": str(tmp_path / "data"), "runs_dir": str(tmp_path / "runs")},
        "environment": {"name": task, "hops": {1: 0.5, 2: 0.5}},
        "policy": {"warmup": {"steps": 60}},
        "update": {"epochs": 1, "minibatches": 1},
    }
    settings = compose(merge([params.model_dump(), changes]))
    engine = recording(settings)
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    assert any(n.observation and not n.is_terminal for n in forest.nodes if n.parent_id >= 0)
    scripted = Scripted(builtin_script(make_environment(settings), all_prompts(settings)))
    run, forest = run_once(settings, scripted, monkeypatch, "scripted")
    assert_sound(run, forest, scripted.requests)
    assert_mixed_and_learned(run, forest)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny chat model for each task; for functions each function's long description is one token."""
    folder = tmp_path_factory.mktemp("models")
    plain = chat_policy(folder / "plain")
    return {"search": plain, "math": plain, "functions": chat_policy(folder / "functions", words=schemas(CATEGORIES))}


def settings_of(task: str, folder: Path, models: dict[str, Path], **sections) -> Params:
    for package in {"math": ("math_verify", "pydantic_monty"), "functions": ("bfcl_eval",)}.get(task, ("bm25s",)):
        pytest.importorskip(package)
    return real_params(folder, models[task], TASKS[task](folder) | sections.pop("environment", {}), **sections)


def all_prompts(settings: Params) -> list[Prompt]:
    return [prompt for split in ("train", "val", "test") for prompt in prompts(settings, split).values()]


def script_of(task: str, settings: Params) -> Script:
    scripts = {"search": search_script, "math": math_script}
    return scripts[task] if task in scripts else functions_script(all_prompts(settings))


@pytest.mark.parametrize("task", TASKS)
def test_random_policy_fails_everywhere_and_the_run_goes_on(tmp_path, models, monkeypatch, task):
    settings = settings_of(task, tmp_path, models, engine={"max_turn_tokens": 8, "batch_size": 8})
    engine = recording(settings)
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    line = run.metrics()[0]
    assert (line["train/reward"], line["effective_ratio/prompts"], line["policy/optimizer_steps"]) == (0, 0, 0)


@pytest.mark.parametrize("task", TASKS)
def test_scripted_policy_uses_the_tool_is_branched_and_learns(tmp_path, models, monkeypatch, task):
    settings = settings_of(task, tmp_path, models, evaluation={"samples": 1})
    engine = Scripted(script_of(task, settings))
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    assert_mixed_and_learned(run, forest)


def test_graded_rewards_are_outcomes_to_the_predictor_and_rewards_to_the_policy(tmp_path, models, monkeypatch, capsys):
    opened = []

    class Counted(Bm25):
        def __init__(self, *arguments) -> None:
            opened.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(search, "Bm25", Counted)
    settings = settings_of("search", tmp_path, models, environment={"graded": True}, update={"advantage": "grpo"})
    engine = Scripted(search_script)
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    assert_mixed_and_learned(run, forest)
    leaves = [forest.nodes[row] for row in forest.leaves_L.tolist()]
    half, two_thirds = pytest.approx(1 / 2), pytest.approx(2 / 3)
    assert any(leaf.reward == half for leaf in leaves)
    assert any(leaf.reward == two_thirds for leaf in leaves)
    for row in np.flatnonzero(forest.is_root_N).tolist():  # labels count outcomes: a half-right answer is a failure
        own = [leaf for leaf in leaves if leaf.anchor_id == row]
        assert own_rollouts(forest)[0][row] == sum(leaf.reward > SUCCESS for leaf in own)
        learned = [(leaf.reward, leaf.advantage) for leaf in own if leaf.advantage is not None]
        assert all((r < s) == (a < b) for r, a in learned for s, b in learned)
    evaluation = read_json(run.iteration(0) / "evaluation.json")
    assert evaluation["accuracy"] * evaluation["rollouts"] == int(evaluation["accuracy"] * evaluation["rollouts"])
    assert evaluation["accuracy"] != evaluation["mean_reward"]
    assert len(opened) == 1  # one index serves every stage
    capsys.readouterr()
    evaluate(str(run.path), samples=4, runs_dir=run.path.parent)
    shown = re.findall(r"(.+): accuracy (\S+), mean reward (\S+) over 8 rollouts", capsys.readouterr().out)
    assert [when for when, _, _ in shown] == ["the policy that the run started from", "after 1 iterations"]
    assert shown[0][1] != shown[0][2]


def test_prompts_that_do_not_fit_are_counted_before_any_work(tmp_path, models):
    task = TASKS["search"](tmp_path)
    with (tmp_path / "questions.jsonl").open("a") as file:
        file.write(json.dumps({"question": "Where? " * 600, "answer": "here"}) + "\n")
    sizes = {"train_prompts": 13}
    settings = real_params(tmp_path, models["search"], task | sizes, engine={"max_tokens": 4000})
    run = open_run(settings, "r")
    with pytest.raises(
        UserError, match=r"max_tokens=4000 leaves no room for a turn after 1 of the 17 prompts; the longest"
    ):
        train(run)
    assert not (run.path / "iterations").exists()
    fits = open_run(real_params(tmp_path, models["search"], task | sizes), "fits")
    warm_up_policy.fn(fits.path)
    assert 4000 < fits.manifest["longest_prompt"] < 12000


def test_template_that_fails_at_the_tools_is_told_before_any_work(tmp_path):
    """A template that takes a tool for a text fails with an error of Python's, not of the template engine's."""
    broken = chat_policy(tmp_path / "broken", "{%- if tools %}{{ 'Tool: ' + tools[0] }}{%- endif %}" + KEEPS)
    run = open_run(real_params(tmp_path, broken, TASKS["search"](tmp_path)), "r")
    with pytest.raises(
        UserError, match=r"refuses a conversation with the roles system, user and 1 tools: can only conc"
    ):
        train(run)
    assert not (run.path / "iterations").exists()
