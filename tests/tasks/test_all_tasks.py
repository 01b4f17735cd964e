"""Every task through all stages of an iteration: what is sampled, judged, branched and learned holds together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from components import policy as policy_package
from components.config import Params
from components.policy import make_environment
from components.policy.base import Completion, Request
from components.policy.engine_transformers import TransformersEngine
from components.storage import read_json
from components.tree.anchors import SUCCESS
from components.tree.forest import Forest
from components.tree.schema import Origin, Status, StopReason
from components.tree.values import own_rollouts
from tasks.inputs import prompts, read_forest
from tasks.run import Run, open_run
from tests.tasks.pipeline import train
from tests.tasks.real import (
    TASKS,
    Scripted,
    chat_policy,
    functions_script,
    math_script,
    real_params,
    schemas,
    search_script,
)

CATEGORIES = ["multi_turn_base", "multi_turn_miss_func"]


class Recording(TransformersEngine):
    """The embedded engine, which keeps what it was asked."""

    requests: list[Request]

    def generate(self, requests: list[Request]) -> list[Completion]:
        self.requests += requests
        return super().generate(requests)


def run_once(params: Params, engine: Recording | Scripted, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Forest]:
    monkeypatch.setattr(policy_package, "_engine", lambda settings: engine)
    run = open_run(params, "r")
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
    assert 0 < line["budget/units"] <= params.allocation.shape.units
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


def continued(forest: Forest) -> list:
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
        assert transition.stop_reason == node.stop_reason
        assert (transition.answer if transition.done else transition.observation) == node.observation


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("task", ["multihop", "calculator", "devices"])
def test_built_in_task_trains_on_mixed_groups(params, data_dir, tmp_path, monkeypatch, task):
    tree = params.model_dump()
    tree["run"] |= {"iterations": 1, "data_dir": str(data_dir), "runs_dir": str(tmp_path)}
    tree["environment"] |= {"name": task, "hops": {1: 0.8, 2: 0.2}}
    tree["policy"]["warmup"] |= {"steps": 60}
    settings = Params.model_validate(tree)
    engine = recording(settings)
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    line = run.metrics()[0]
    assert any(n.observation and not n.is_terminal for n in forest.nodes if n.parent_id >= 0)
    assert 0 < line["train/reward"] < 1
    assert line["effective_ratio/prompts"] > 0
    assert line["policy/optimizer_steps"] > 0
    assert continued(forest)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A tiny chat model for each task; functions' has one token for each function's long description."""
    folder = tmp_path_factory.mktemp("models")
    plain = chat_policy(folder / "plain")
    models = {"search": plain, "math": plain}
    try:
        models["functions"] = chat_policy(folder / "functions", words=schemas(CATEGORIES))
    except Exception:  # noqa: BLE001  # bfcl-eval is not installed
        pass
    return models


REAL = [
    pytest.param("search", id="search"),
    pytest.param("math", id="math"),
    pytest.param("functions", id="functions"),
]


def settings_of(task: str, folder: Path, models: dict[str, Path], **sections) -> Params:
    for package in {"math": ("math_verify", "pydantic_monty"), "functions": ("bfcl_eval",)}.get(task, ("bm25s",)):
        pytest.importorskip(package)
    return real_params(folder, models[task], TASKS[task](folder), **sections)


@pytest.mark.parametrize("task", REAL)
def test_random_policy_fails_everywhere_and_the_run_goes_on(tmp_path, models, monkeypatch, task):
    settings = settings_of(task, tmp_path, models, engine={"max_turn_tokens": 8, "batch_size": 8, "max_tokens": 12000})
    engine = recording(settings)
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    line = run.metrics()[0]
    assert (line["train/reward"], line["effective_ratio/prompts"], line["policy/optimizer_steps"]) == (0, 0, 0)
    assert {forest.nodes[row].stop_reason for row in forest.leaves_L.tolist()} <= {
        StopReason.LENGTH, StopReason.ANSWERED, StopReason.MALFORMED_ACTION,
    }  # fmt: skip


def script_of(task: str, settings: Params):
    if task == "functions":
        return functions_script([p for split in ("train", "val", "test") for p in prompts(settings, split).values()])
    return {"search": search_script, "math": math_script}[task]


@pytest.mark.parametrize("task", REAL)
def test_scripted_policy_uses_the_tool_is_branched_and_learns(tmp_path, models, monkeypatch, task):
    settings = settings_of(task, tmp_path, models)
    engine = Scripted(script_of(task, settings))
    run, forest = run_once(settings, engine, monkeypatch)
    assert_sound(run, forest, engine.requests)
    line = run.metrics()[0]
    assert all(forest.nodes[row].status == Status.OK for row in forest.leaves_L.tolist())
    assert {forest.nodes[row].stop_reason for row in forest.leaves_L.tolist()} == {StopReason.ANSWERED}
    observations = [n for n in forest.nodes if n.parent_id >= 0 and not n.is_terminal]
    assert observations
    assert all(n.observation for n in observations)
    assert {forest.nodes[row].reward for row in forest.leaves_L.tolist()} == {0.0, 1.0}
    assert continued(forest)
    assert line["budget/continuations"] == len(continued(forest))
    assert line["effective_ratio/prompts"] > 0
    # One step from the very weights that sampled: each ratio is 1, which no token may have been mislaid for.
    assert line["policy/optimizer_steps"] == 1
    assert line["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert line["policy/clip_fraction"] == 0
    assert line["policy/grad_norm"] > 0
    assert 0 < line["eval/accuracy"] < 1
