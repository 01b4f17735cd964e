"""Plans: what grows with what, what fits, and which key is named where it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.allocation.anchors import Anchors, Belief
from components.allocation.arms import ARMS
from components.params.load import load_params
from components.params.root import Params, compose
from components.planning import Cluster, make_cluster, plan
from components.planning.memory import Layout
from components.planning.models import PUBLISHED
from components.planning.stages import Plan, rollouts_of
from components.policy.engines import ENGINES
from components.policy.engines.base import Engine
from components.policy.trainers import TRAINERS
from components.policy.trainers.base import Trainer
from components.predictor.base import Predictor
from components.predictor.models import PREDICTORS

MATH = Path(__file__).parents[3] / "params" / "qwen3-8b-math.yaml"
P = PUBLISHED["Qwen3-8B"].parameters


def load(**changes: Any) -> Params:
    return load_params(MATH, {key.replace("__", "."): value for key, value in changes.items()})


def made(gpu: str = "H200", gpus: int = 8, memory: float | None = None, **changes: Any) -> Plan:
    return plan(load(**changes), make_cluster(gpus, gpu, memory))


def stage(plan: Plan, name: str):
    return next(stage for stage in plan.stages if stage.name == name)


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "optimiser"),
    [(0, 4 * P, 4 * P, 8 * P), (1, 4 * P, 4 * P, 12 * P / 8), (2, 4 * P, 4 * P / 8, 12 * P / 8),
     (3, 4 * P / 8, 4 * P / 8, 12 * P / 8)],
)  # fmt: skip
def test_zero_stages_part_moments_gradients_and_weights(zero, weights, gradients, optimiser):
    memory = stage(made(update__zero_stage=zero), "update").memory
    assert [memory[part] for part in ("weights", "gradients", "optimiser")] == [weights, gradients, optimiser]


def test_offload_checkpointing_and_adapters_each_save_what_they_are_for():
    whole = stage(made(), "update").memory
    assert stage(made(update__offload=True), "update").memory["optimiser"] == 0
    kept = stage(made(update__gradient_checkpointing=False), "update").memory["activations"]
    assert kept > 5 * whole["activations"]
    adapters = stage(made(update__lora__rank=16), "update").memory
    assert adapters["weights"] == whole["weights"]
    assert adapters["optimiser"] < whole["optimiser"] / 100
    assert Layout.of(load(update__lora__rank=16)).trained == 43646976  # 36 layers of q, k, v, o, gate, up and down


def test_an_adapter_s_parameters_are_those_of_its_matrices():
    sizes = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 12288), (4096, 12288), (12288, 4096)]
    assert Layout.of(load(update__lora__rank=1)).trained == 36 * sum(a + b for a, b in sizes)


def test_what_fits_on_large_gpus_does_not_fit_on_small_ones_and_the_key_is_named():
    assert made("H200").problems == []
    (refit, update) = made("H100").problems
    assert refit.startswith("refit needs ")
    assert "engine.max_tokens or predictor.path" in refit
    assert update.startswith("update needs ")
    assert "beside the 28 GB that the engine keeps (engine.gpu_memory)" in update
    assert "most is logits" in update
    assert "change engine.max_tokens" in update
    assert made("H100", engine__max_tokens=8192, engine__max_turn_tokens=2048).problems == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update__gradient_checkpointing": False}, "most is activations.*change update.gradient_checkpointing"),
        ({"update__micro_batch_tokens": 65536}, "most is logits.*change update.micro_batch_tokens"),
        ({"update__zero_stage": 0}, "most is optimiser.*change update.zero_stage"),
        ({"engine__gpu_memory": 0.1}, "weights .*raise engine.gpu_memory or engine.tensor_parallel"),
        ({"engine__servers": 16}, r"engine.servers × engine.tensor_parallel = 16 is more"),
        ({"update__processes": 9}, r"update.processes = 9 is more"),
        ({"predictor__batch_size": 64}, "refit needs .*change predictor.batch_size"),
    ],
)
def test_each_cause_has_its_key(changes, message):
    problems = made(**changes).problems
    assert any(re.search(message, problem) for problem in problems), problems


@pytest.mark.parametrize("arm", ARMS)
def test_rollouts_spend_the_budget_as_the_arm_does(arm):
    params = compose({"allocation": {"arm": arm}})
    factual, further = rollouts_of(params)
    assert factual + further / 2 == params.allocation.budget.units
    zero, turns = np.zeros(3, dtype=np.int64), np.arange(3)
    belief = Belief(np.full(3, 0.5), np.full(3, 2.0))
    right, wrong = np.array([1, 1, 0]), np.array([1, 0, 1])  # below a root and two prefixes
    anchors = Anchors(turns, zero, turns, right, wrong, belief, np.full(3, 0.5), np.full(3, 9.0))
    budget, rng = params.allocation.budget, np.random.default_rng(0)
    granted = ARMS[arm]().plan_continuations(anchors, np.array([4]), budget, rng)
    assert (granted.sum() > 0) == (further > 0)


def test_tokens_and_time_grow_with_budget_and_length_and_memory_with_the_limit():
    base, longer = made(), made(engine__max_tokens=32768)
    double = made(allocation__root_units=1024, allocation__pool=256)
    assert double.tree_tokens == 2 * base.tree_tokens == longer.tree_tokens
    assert stage(double, "update").seconds == pytest.approx(2 * stage(base, "update").seconds)
    assert stage(longer, "update").bytes > stage(base, "update").bytes == stage(double, "update").bytes
    assert longer.seconds > base.seconds
    assert made("A100").seconds > made("H100").seconds
    assert made(run__keep_policies=5).disk["policies"] == pytest.approx(7 / 4 * base.disk["policies"])
    assert made(run__iterations=400).disk["forests"] == pytest.approx(2 * base.disk["forests"])


def test_embedded_default_fits_this_machine():
    done = plan(compose({}), make_cluster(0, "H100", None))
    assert done.problems == []
    assert stage(done, "update").bytes < 1e9
    small = plan(compose({}), Cluster("CPU", 1, 50e6, 1e11)).problems
    assert any("update.gradient_checkpointing" in problem for problem in small)
    assert plan(compose({}), make_cluster(1, "H100", None)).notes == [
        "what computes on the CPU, whatever GPUs there are: engine.name=transformers and update.name=torch"
    ]


class Own(Engine):
    """An engine of a plug-in that says nothing of where it lies."""

    name = "own-engine"


class Counts(Predictor):
    """A predictor of a plug-in that computes next to nothing."""

    name = "own-predictor"


class Learns(Trainer):
    name = "own-trainer"


def test_plugins_that_say_nothing_of_themselves_are_planned_in_the_runs_own_process(monkeypatch):
    for registry, kind in ((ENGINES, Own), (PREDICTORS, Counts), (TRAINERS, Learns)):
        monkeypatch.setitem(registry._found, kind.name, kind)
    names = {"engine": Own.name, "predictor": Counts.name, "update": Learns.name}
    own = plan(compose({section: {"name": name} for section, name in names.items()}), make_cluster(0, "H100", None))
    default = plan(compose({}), make_cluster(0, "H100", None))
    assert own.problems == []
    assert stage(own, "update").memory == stage(default, "update").memory
    assert stage(own, "generation").memory == stage(default, "generation").memory
    assert stage(own, "scoring").memory == stage(own, "refit").memory == {}
