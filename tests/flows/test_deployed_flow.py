"""The flow as a deployment runs it: loaded from its file, under a name that says arm and seed and outlives a retry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from prefect.flows import load_flow_from_entrypoint

from flows import train

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "params.yaml").write_text("allocation: {arm: pcl}")
    monkeypatch.chdir(tmp_path)

    def named(drawn: str, **parameters: object) -> str:
        monkeypatch.setattr(
            train, "runtime", SimpleNamespace(flow_run=SimpleNamespace(name=drawn, parameters=parameters))
        )
        return train._name()

    return named


def test_name_says_arm_and_seed(name):
    assert name("eager-mammoth") == "pcl-s0-eager-mammoth"
    assert name("eager-mammoth", arm="grpo", seed=3, run_id=None) == "grpo-s3-eager-mammoth"
    assert name("eager-mammoth", overrides={"run.seed": 7}) == "pcl-s7-eager-mammoth"


def test_given_name_is_taken_as_it_is(name):
    assert name("eager-mammoth", run_id="mine", arm="grpo") == "mine"


def test_retried_flow_run_keeps_its_name(name):
    assert name("grpo-s3-eager-mammoth", arm="grpo", seed=3) == "grpo-s3-eager-mammoth"


def test_faulty_parameters_are_left_for_the_flow_to_report(name):
    assert name("eager-mammoth", arm="no-such-arm") == "eager-mammoth"


@pytest.mark.parametrize("flow", ["trace", "iteration"])
def test_flow_goes_to_dask_with_the_tasks_that_it_submits(flow):
    """Loaded from a file, it is of no module that a Dask worker could import, so all that it names is pickled."""
    loaded = load_flow_from_entrypoint(f"{REPOSITORY}/flows/train.py:{flow}")
    assert cloudpickle.loads(cloudpickle.dumps(loaded)).name == flow
