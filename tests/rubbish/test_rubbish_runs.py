"""Whole iterations on rubbish: they end as they should, or say in one line why not, with what came before kept."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from components import build
from components.allocation.anchors import Belief
from components.environments import ENVIRONMENTS
from components.environments.base import Transition
from components.environments.multihop import MultiHop
from components.errors import UserError
from components.params.load import merge
from components.params.root import Params, compose
from components.policy.engines.base import Completion
from components.policy.engines.transformers.engine import TransformersEngine
from components.policy.renderer import Renderer
from components.predictor.policy_features import PolicyFeatures
from components.storage import content_hash
from components.tree.schema import Status, StopReason
from tasks.inputs import read_forest
from tasks.prepare import prepare_data, warm_up_policy
from tasks.run import Run, open_run
from tests.rubbish.kinds import ANSWER, Says
from tests.tasks.pipeline import new_run, train


@pytest.fixture
def small(params, random_policy) -> Params:
    """One iteration in a fraction of a second."""
    changes = {
        "run": {"iterations": 1},
        "environment": {"train_prompts": 12, "val_prompts": 2, "test_prompts": 2},
        "policy": {"path": str(random_policy)},
        "allocation": {"pool": 4, "root_units": 8, "continuations": 2, "group_size": 2},
        "predictor": {"steps": 2, "hidden": 4},
        "evaluation": {"samples": 1},
    }
    return compose(merge([params.model_dump(), changes]))


def finished(run: Run) -> dict:
    """Trains, and checks the books: every rollout that was paid is there, and none beyond the budget."""
    train(run)
    (line,) = run.metrics()
    assert line["budget/units"] <= run.params.allocation.budget.units
    leaves = [n for n in read_forest(run.iteration(0) / "forest.parquet").nodes if n.is_terminal]
    assert len(leaves) == line["budget/leaves"]
    assert all((n.reward is not None) == (n.status == Status.OK) for n in leaves)
    return line


def finished_without_a_step(run: Run, policy) -> dict:
    line = finished(run)
    assert line["policy/optimizer_steps"] == 0
    weights = [content_hash(p / "model.safetensors") for p in (policy, run.iteration(0) / "policy")]
    assert weights[0] == weights[1]
    return line


@pytest.fixture
def answers(random_policy, monkeypatch) -> None:
    """Every rollout answers at once, with the same."""
    engine = Says(Renderer.load(random_policy), ANSWER)
    monkeypatch.setattr(build, "_engine", lambda section: engine)


SHAPES = {
    "smallest budget": {"root_units": 2, "continuations": 0},
    "pool of one, large budget": {"pool": 1, "root_units": 40},
    "budget larger than the pool": {"pool": 2, "root_units": 40, "continuations": 0},
    "budget smaller than the pool": {"pool": 12, "root_units": 3},
    "cap that leaves most unspent": {"pool": 2, "root_units": 40, "max_per_prompt": 2},
    "group that divides nothing": {"arm": "grpo", "root_units": 7, "continuations": 1, "group_size": 5},
    "flat arm, pool of one": {"arm": "grpo", "pool": 1, "root_units": 16},
    "more rounds than there is to plan": {"root_units": 2, "continuations": 8, "rounds": 8},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_budget_of_any_shape_is_kept(small, data_dir, tmp_path, kind):
    finished(new_run(small, data_dir, tmp_path, allocation=SHAPES[kind]))


def belief(mean: float, concentration: float = 2.0):
    return lambda self, prefixes: Belief(np.full(len(prefixes), mean), np.full(len(prefixes), concentration))


@pytest.mark.parametrize(("arm", "constant"), [("trace", 0.0), ("trace", 0.5), ("trace", 1.0), ("knapsack", 1e-300)])
def test_predictor_that_returns_constants_spends_within_the_budget(
    small, data_dir, tmp_path, monkeypatch, constant, arm
):
    monkeypatch.setattr(PolicyFeatures, "predict", belief(constant))
    finished(new_run(small, data_dir, tmp_path, allocation={"arm": arm}))


def test_predictor_of_nan_features_is_ignorance_and_the_run_goes_on(small, data_dir, tmp_path, monkeypatch, caplog):
    features = PolicyFeatures.features
    monkeypatch.setattr(PolicyFeatures, "features", lambda self, prefixes: features(self, prefixes) * np.nan)
    line = finished(new_run(small, data_dir, tmp_path))
    assert line["budget/leaves"] > 0
    assert "beliefs of the predictor are no numbers" in caplog.text
    assert "its fit was undone" in caplog.text


def test_predictor_of_nan_beliefs_is_one_line_and_nothing_is_sampled(small, data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(PolicyFeatures, "predict", belief(float("nan")))
    run = new_run(small, data_dir, tmp_path)
    with pytest.raises(UserError, match="the predictor PolicyFeatures gives no belief: row 0 of a belief has mean nan"):
        train(run)
    assert not (run.iteration(0) / "generated.parquet").exists()


class Odd(TransformersEngine):
    """The embedded engine, whose completions are changed on their way."""

    change = staticmethod(lambda completion: completion)

    def generate(self, requests):
        return [self.change(completion) for completion in super().generate(requests)]


ENGINES = {
    "NaN log-probabilities": lambda c: replace(c, logprobs=[np.nan] * len(c.logprobs)),
    "infinite log-probabilities": lambda c: replace(c, logprobs=[-np.inf] * len(c.logprobs)),
    "probabilities for their logarithms": lambda c: replace(c, logprobs=[np.exp(p) for p in c.logprobs]),
    "empty generations": lambda c: Completion(),
    "empty generations that end": lambda c: Completion(stopped=True),
    "turns that never end": lambda c: replace(c, stopped=False),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_engine_that_gives_rubbish_is_never_trained_on(
    small, data_dir, tmp_path, random_policy, monkeypatch, kind, caplog
):
    engine = Odd(small.engine)
    engine.change = ENGINES[kind]
    monkeypatch.setattr(build, "_engine", lambda section: engine)
    finished_without_a_step(new_run(small, data_dir, tmp_path), random_policy)
    assert ("rollouts ended in a fault" in caplog.text) == ("prob" in kind)


def odd(**methods) -> type:
    return type("OddWorld", (MultiHop,), methods)


def broken(*_):
    raise OSError("the tool is away")


WORLDS = {
    "step raises": odd(step=broken),
    "step returns nothing": odd(step=lambda self, state, action: None),
    "step returns rubbish": odd(step=lambda self, state, action: Transition(state, 7)),
    "never ends": odd(step=lambda self, state, action: Transition(state, "nothing")),
    "ends at once": odd(step=lambda self, state, action: Transition(state, stop_reason=StopReason.ANSWERED)),
    "always asks again as a user": odd(step=lambda self, state, action: Transition(state, "again", role="user")),
    "answers of surrogates": odd(
        step=lambda self, state, action: Transition(state, stop_reason=StopReason.ANSWERED, answer="\ud800")
    ),
}


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("kind", WORLDS)
def test_environment_of_rubbish_does_not_end_the_run(small, data_dir, tmp_path, random_policy, monkeypatch, kind):
    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", WORLDS[kind])
    finished_without_a_step(new_run(small, data_dir, tmp_path), random_policy)


@pytest.mark.parametrize(("method", "fault"), [("reset", "raises"), ("chat", "raises"), ("chat", "returns rubbish")])
def test_environment_that_cannot_begin_a_prompt_is_named_before_any_work(
    small, data_dir, tmp_path, monkeypatch, method, fault
):
    world = odd(**{method: broken if fault == "raises" else lambda self, prompt: 3})
    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", world)
    run = new_run(small, data_dir, tmp_path)
    prepare_data.fn(run.path)
    with pytest.raises(UserError, match=r"OddWorld cannot begin prompt .*: (OSError: the tool|TypeError: chat)"):
        warm_up_policy.fn(run.path)


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize(
    ("score", "reward"), [(True, 1.0), (False, 0.0), (float("nan"), None), (float("inf"), None), (None, None)], ids=str
)
def test_rewards_without_contrast_and_rewards_that_are_none_bring_no_step(
    small, data_dir, tmp_path, random_policy, monkeypatch, score, reward, caplog
):
    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", odd(score=lambda self, prompt, answer: score))
    line = finished_without_a_step(new_run(small, data_dir, tmp_path), random_policy)
    assert line["train/reward"] == reward
    assert line["effective_ratio/prompts"] == 0
    assert ("rollouts could not be verified" in caplog.text) == (reward is None)


def test_gradient_that_is_no_number_keeps_the_last_policy_and_says_what_to_do(small, data_dir, tmp_path, monkeypatch):
    def diverges(*_, **__):
        raise FloatingPointError("the policy's loss (nan) or gradient norm (nan) is not finite; the step was not taken")

    monkeypatch.setattr("components.policy.trainers.torch.trainer.TorchTrainer.update", diverges)
    run = new_run(small, data_dir, tmp_path)
    with pytest.raises(UserError, match=r"iteration 0: .* not finite.* no policy was written .* update\.learning_rate"):
        train(run)
    assert not (run.iteration(0) / "policy").exists()
    monkeypatch.undo()
    finished(run)  # the same run goes on from there


LIMITS = {
    "turn longer than the rollout": {"max_tokens": 64, "max_turn_tokens": 2**20},
    "cache of almost nothing": {"cache_gb": 1e-12},
    "hottest": {"temperature": 1e30},
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_at_their_ends(small, data_dir, tmp_path, kind):
    finished(new_run(small, data_dir, tmp_path, engine=LIMITS[kind]))


def test_run_in_a_folder_of_any_name(small, data_dir, tmp_path, caplog):
    folder = tmp_path / "Ünï cödé 😀 'quoted\" {braces} [b] $HOME"
    with caplog.at_level(logging.WARNING):
        run = new_run(small, data_dir, folder)
        finished(run)
    assert (folder / "latest").resolve() == run.path
    assert open_run(run.params, "r").path == run.path
