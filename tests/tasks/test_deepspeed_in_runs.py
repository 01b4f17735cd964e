"""A whole iteration whose policy is updated by DeepSpeed, as a run with `update.name=deepspeed` does it."""

from __future__ import annotations

import importlib.util

import pytest

from components.errors import MissingExtraError
from components.policy.checkpoint import load_model
from components.policy.trainers.trainable import load_moments
from tasks.summary import finished_iterations
from tests.tasks.pipeline import forests, new_run, train

LORA = {"rank": 2, "alpha": 4.0, "targets": ["q_proj"]}


@pytest.mark.parametrize(
    ("processes", "stage", "lora"),
    [
        pytest.param(1, 3, None, id="one process"),
        pytest.param(2, 3, LORA, id="two processes, adapters", marks=pytest.mark.slow),
        pytest.param(2, 2, None, id="two processes", marks=pytest.mark.slow),
    ],
)
def test_an_iteration_ends_in_a_policy_that_was_trained(params, data_dir, tmp_path, processes, stage, lora):
    pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed")
    update = {"name": "deepspeed", "processes": processes, "zero_stage": stage, "epochs": 1, "lora": lora}
    run = new_run(params, data_dir, tmp_path, run={"iterations": 1}, update=update)
    train(run)
    assert finished_iterations(run) == 1
    steps = run.metrics()[0]["policy/optimizer_steps"]
    policy = run.iteration(0) / "policy"
    assert {float(state["step"]) for state in load_moments(policy).values()} == {steps}
    assert any(node.advantage for node in forests(run)[0].nodes)
    assert (policy / "adapter").exists() == bool(lora)
    load_model(policy)
    assert (run.iteration(0) / "deepspeed.log").exists()


@pytest.mark.parametrize(
    ("update", "package", "extra"),
    [({"name": "deepspeed"}, "deepspeed", "deepspeed"), ({"lora": {"rank": 2}}, "peft", "lora")],
)
def test_missing_packages_are_named_before_anything_starts(
    params, data_dir, tmp_path, monkeypatch, update, package, extra
):
    found = importlib.util.find_spec
    monkeypatch.setattr("components.registry.find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(MissingExtraError, match=rf"\[{extra}\]"):
        new_run(params, data_dir, tmp_path / "runs", update=update)
    assert not (tmp_path / "runs").exists()
