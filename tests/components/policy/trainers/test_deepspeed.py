"""DeepSpeed's processes take the step of the one-process trainer: over gloo, many jobs in a launch."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from components.errors import UserError
from components.policy.checkpoint import load_model
from components.policy.packing.batches import micro_batches
from components.policy.renderer import Renderer
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.deepspeed.params import DeepSpeedParams
from components.policy.trainers.deepspeed.trainer import LAUNCHER, WORKER, DeepSpeedTrainer, launch
from components.policy.trainers.torch.trainer import TorchTrainer
from components.policy.trainers.trainable import load_moments
from components.storage import content_hash, write_json, write_parquet
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from tests.components.policy.forests import forest

pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed")

STAGES = (0, 1, 2, 3)
ONE_STEP = UpdateParams(advantage="grpo", epochs=1, minibatches=1)
SMALL = {"micro_batch_tokens": 60, "minibatches": 2, "epochs": 2}  # several batches in some steps, one in others
LORA = {"lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}}


def trees() -> Forest:
    return forest([1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 0.0])


def settings(processes: int, stage: int, **changes: Any) -> DeepSpeedParams:
    chosen = ONE_STEP.model_dump() | {"name": "deepspeed", "processes": processes, "zero_stage": stage} | changes
    return DeepSpeedParams.model_validate(chosen)


def one_process(chosen: DeepSpeedParams) -> UpdateParams:
    return UpdateParams.model_validate({key: getattr(chosen, key) for key in UpdateParams.model_fields})


@dataclass
class Launch:
    """Jobs for one launch, and the same jobs done by the one-process trainer."""

    root: Path
    processes: int
    jobs: dict[str, tuple[DeepSpeedParams, Path, Forest]] = field(default_factory=dict)

    def add(self, name: str, chosen: DeepSpeedParams, policy: Path, given: Forest | None = None) -> Path:
        folder = self.root / name
        folder.mkdir()
        given = given or trees()
        write_parquet(folder / "forest.parquet", given.to_table())
        job = {"policy": policy, "target": folder / "next", "seed": 0, "fresh": False, "temperature": 1.0}
        write_json(folder / "job.json", job | {"threads": 1, "settings": chosen.model_dump(), "plugins": []})
        self.jobs[name] = (chosen, policy, given)
        return folder / "next"

    def run(self) -> None:
        launch(WORKER, [self.root / name for name in self.jobs], self.processes, 1, self.root / "log")

    def policy(self, name: str) -> Path:
        return self.root / name / "next"

    def metrics(self, name: str) -> dict[str, float]:
        return dict(json.loads((self.root / name / "metrics.json").read_text()))

    def log(self, name: str) -> list[tuple[int, str]]:
        return [(level, line) for level, line in json.loads((self.root / name / "log.json").read_text())]

    def reference(self, name: str, policy: Path | None = None) -> Path:
        """The policy that the one-process trainer makes of the same job."""
        chosen, given_policy, given = self.jobs[name]
        target = self.root / name / "reference"
        if not target.exists():
            TorchTrainer(one_process(chosen), 1.0).update(given, policy or given_policy, target, 0)
        return target


def assert_same_step(got: Path, expected: Path, atol: float = 1e-5) -> None:
    """The same weights, and the same first moments: after one step these are a tenth of the gradient."""
    a, b = (load_model(path).state_dict() for path in (got, expected))
    for name in b:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=0, msg=lambda m, name=name: f"{name}: {m}")
    a, b = load_moments(got), load_moments(expected)
    assert a.keys() == b.keys()
    for name in b:
        assert float(a[name]["step"]) == float(b[name]["step"])
        torch.testing.assert_close(a[name]["exp_avg"], b[name]["exp_avg"], atol=1e-6, rtol=0)
        torch.testing.assert_close(a[name]["exp_avg_sq"], b[name]["exp_avg_sq"], atol=1e-8, rtol=0)


@pytest.fixture(scope="module")
def one(tmp_path_factory, random_policy) -> Launch:
    made = Launch(tmp_path_factory.mktemp("one"), 1)
    for stage in STAGES:
        made.add(f"stage-{stage}", settings(1, stage, **SMALL), random_policy)
    made.run()
    return made


@pytest.fixture(scope="module")
def two(tmp_path_factory, random_policy) -> Launch:
    made = Launch(tmp_path_factory.mktemp("two"), 2)
    made.add("bf16-3", settings(2, 3, dtype="bf16"), random_policy)
    for stage in STAGES:
        made.add(f"stage-{stage}", settings(2, stage, **SMALL), random_policy)
    made.add("again", settings(2, 3, **SMALL), random_policy)
    made.add("uneven", settings(2, 3, micro_batch_tokens=60), random_policy)
    made.add("goes-on", settings(2, 2), made.policy("stage-2"))
    made.add("changed", settings(2, 3), made.reference("stage-1"))
    first = made.add("lora", settings(2, 3, gradient_checkpointing=True, **LORA), random_policy)
    made.add("lora-goes-on", settings(2, 2, **LORA), first)
    made.add("bf16", settings(2, 2, dtype="bf16"), random_policy)
    made.add("capped", settings(2, 3, importance_cap=2.0, gradient_checkpointing=True), random_policy)
    made.add("offload", settings(2, 2, offload=True), random_policy)
    made.add("nothing", settings(2, 3), random_policy, forest([1.0, 1.0]))
    infinite = trees()
    infinite.nodes[1].logprobs[0] = float("-inf")
    made.add("not-finite", settings(2, 3), random_policy, infinite)
    with pytest.raises(FloatingPointError, match="not finite"):
        made.run()
    return made


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_step_is_that_of_one_process(request, processes, stage):
    """Four optimiser steps on trees of unequal size, weights and moments."""
    made = request.getfixturevalue({1: "one", 2: "two"}[processes])
    name = f"stage-{stage}"
    assert_same_step(made.policy(name), made.reference(name))
    assert made.metrics(name)["optimizer_steps"] == 4


def test_a_process_with_fewer_batches_takes_part_to_the_end(two):
    chosen, _, given = two.jobs["uneven"]
    batches = micro_batches(given, terms_of(given, "grpo"), chosen.model_copy(update={"packing": "tree"}))
    assert len(batches) == 3
    assert_same_step(two.policy("uneven"), two.reference("uneven"))


def test_metrics_are_those_of_all_processes(two, random_policy, tmp_path):
    chosen, policy, given = two.jobs["stage-3"]
    expected = TorchTrainer(one_process(chosen), 1.0).update(given, policy, tmp_path / "next", 0).metrics
    for name, value in two.metrics("stage-3").items():
        assert value == pytest.approx(expected[name], rel=1e-4), name


def test_the_same_job_twice_writes_the_same_bytes(two):
    assert content_hash(two.policy("stage-3")) == content_hash(two.policy("again"))


def test_the_checkpoint_is_whole_and_holds_no_pickles(two):
    files = {path.name for path in two.policy("stage-3").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files
    assert {name for name in files if "optimizer" in name} == {
        "optimizer-00001-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors",
    }
    assert all(name.endswith((".json", ".safetensors", ".jinja")) for name in files)
    Renderer.load(two.policy("stage-3"))


def test_adam_goes_on_where_the_checkpoint_stood(two):
    assert_same_step(two.policy("goes-on"), two.reference("goes-on", two.reference("stage-2")))
    assert {float(state["step"]) for state in load_moments(two.policy("goes-on")).values()} == {5.0}


def test_adam_goes_on_from_the_checkpoint_of_another_number_of_processes(two):
    assert_same_step(two.policy("changed"), two.reference("changed"))
    assert {float(state["step"]) for state in load_moments(two.policy("changed")).values()} == {5.0}


def test_adapters_are_trained_alike_and_go_on(two, random_policy):
    assert_same_step(two.policy("lora"), two.reference("lora"))
    assert_same_step(two.policy("lora-goes-on"), two.reference("lora-goes-on", two.reference("lora")))


def test_bf16_computes_the_same_as_in_one_process_and_keeps_fp32_weights(two):
    assert load_model(two.policy("bf16")).dtype == torch.float32
    got, expected = load_moments(two.policy("bf16")), load_moments(two.reference("bf16"))
    for name in expected:
        torch.testing.assert_close(got[name]["exp_avg"], expected[name]["exp_avg"], atol=2e-4, rtol=0)


def test_every_process_packs_as_the_first_one_decides_and_the_log_says_so(two):
    assert all(two.metrics(name)["packed"] == 1 for name in two.jobs if name not in ("nothing", "not-finite"))
    lines = [line for name in two.jobs if name != "not-finite" for line in two.log(name)]
    assert {level for level, _ in lines} == {logging.INFO}
    assert all("trees are packed, each shared token is computed once" in line for _, line in lines)
    assert two.log("bf16-3")  # the first of its launch: looked at in bf16


def test_capped_importance_weights_and_checkpointed_layers_are_those_of_one_process(two):
    assert_same_step(two.policy("capped"), two.reference("capped"))


def test_moments_in_the_hosts_memory_change_nothing(two):
    assert_same_step(two.policy("offload"), two.reference("offload"))


def test_nothing_to_learn_is_no_step(two, random_policy):
    assert two.metrics("nothing")["optimizer_steps"] == 0
    assert content_hash(two.policy("nothing") / "model.safetensors") == content_hash(
        random_policy / "model.safetensors"
    )


def test_a_step_that_is_not_finite_writes_nothing(two):
    assert not two.policy("not-finite").exists()


def test_a_missing_part_of_the_moments_is_an_error(two, tmp_path):
    (tmp_path / "optimizer-00002-of-00002.safetensors").write_bytes(
        (two.policy("stage-3") / "optimizer-00002-of-00002.safetensors").read_bytes()
    )
    with pytest.raises(UserError, match="holds only 1 of the files that optimizer-00002-of-00002"):
        load_moments(tmp_path)


def workers(among: psutil.Process) -> list[psutil.Process]:
    """The processes below one that run a job."""
    found = []
    for process in among.children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if WORKER in command and LAUNCHER not in command:
            found.append(process)
    return found


def await_workers(among: psutil.Process, count: int) -> list[psutil.Process]:
    end = time.monotonic() + 300
    while len(found := workers(among)) < count and time.monotonic() < end:
        time.sleep(0.1)
    assert len(found) == count
    return found


@pytest.mark.slow
def test_a_dead_process_ends_the_others_and_the_log_is_named(random_policy, tmp_path):
    others: list[psutil.Process] = []

    def kill_one() -> None:
        first, *rest = await_workers(psutil.Process(), 2)
        others.extend(rest)
        first.kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(UserError, match=r"DeepSpeed failed: .*; see .*deepspeed\.log"):
        DeepSpeedTrainer(settings(2, 3), 1.0, 1).update(trees(), random_policy, tmp_path / "next", 0)
    killer.join()
    assert others
    assert not any(process.is_running() for process in others)
    assert [path.name for path in tmp_path.iterdir()] == ["deepspeed.log"]


@pytest.mark.slow
def test_a_killed_trainer_leaves_no_process_behind(random_policy, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from components.policy.trainers.deepspeed.trainer import DeepSpeedTrainer\n"
        "from tests.components.policy.trainers.test_deepspeed import settings, trees\n"
        "DeepSpeedTrainer(settings(2, 3, epochs=100000), 1.0, 1)"
        ".update(trees(), Path(sys.argv[1]), Path(sys.argv[2]), 0)"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    trainer = subprocess.Popen([sys.executable, "-c", code, random_policy, tmp_path / "next"], env=environment)
    left = await_workers(psutil.Process(trainer.pid), 2)
    left += [process for process in psutil.Process(trainer.pid).children(recursive=True) if process not in left]
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert psutil.wait_procs(left, timeout=300)[1] == []
