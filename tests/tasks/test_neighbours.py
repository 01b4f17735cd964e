"""What stands beside a run fails for real: its disk, its verifier, its process. Nothing paid for is lost or wrong."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter

import numpy as np
import pytest

from components.environments import ENVIRONMENTS
from components.environments.multihop import MultiHop
from components.environments.verify import score_in_worker
from components.tracking.names import iteration_metrics
from components.tree.schema import Status
from components.workers.pool import Workers
from tasks.inputs import prompts
from tasks.retain import retain
from tasks.run import Run
from tasks.stage import read_stages
from tests.tasks.pipeline import fingerprints, forests, new_run, train


class Killed(BaseException):
    """Ends a run at once, as a kill would: nothing of the program catches it."""


def test_c75_killed_while_verifying_samples_nothing_again(params, data_dir, finished, tmp_path, monkeypatch):
    run, scored = new_run(params, data_dir, tmp_path), []

    class Kills(MultiHop):
        def score(self, prompt, answer):
            scored.extend([prompt] * (run.iteration(0) / "generated.parquet").exists())
            if len(scored) == 5:
                raise Killed
            return super().score(prompt, answer)

    with monkeypatch.context() as patched:
        patched.setitem(ENVIRONMENTS._found, "multihop", Kills)
        with pytest.raises(Killed):
            train(run)
    before = read_stages(run.iteration(0))
    assert "generate" in before
    assert "verify_factual" not in before
    train(run)
    assert read_stages(run.iteration(0))["generate"] == before["generate"]  # its times included
    assert fingerprints(run) == fingerprints(finished)


def test_verifier_that_hangs_leaks_or_crashes_gives_statuses_and_never_a_0(
    params, data_dir, tmp_path, monkeypatch, caplog
):
    class Bad(MultiHop):
        parallel_scores = 2

        def score(self, prompt, answer):
            if prompt.prompt_id in held_out:  # an evaluation would take as long again
                return super().score(prompt, answer)
            return score_in_worker(workers, [prompt.answer, answer or ""])

    run = new_run(params, data_dir, tmp_path, run={"iterations": 1})
    held_out = prompts(run.params, "val")
    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Bad)
    with Workers("tests.tasks.bad_graders:grade", count=2, timeout=1.5, memory=1 << 28) as workers:
        train(run)
    found = Counter()
    for leaf in (n for n in forests(run)[0].nodes if n.is_terminal):
        answer = leaf.answer or ""
        fault = sum(answer.encode()) % 5
        found[fault] += 1
        assert leaf.status == {0: Status.TIMEOUT, 4: Status.OK}.get(fault, Status.ERROR)
        assert (leaf.reward is None) == (fault != 4)
    assert set(found) == {0, 1, 2, 3, 4}, found
    line = run.metrics()[0]
    assert line["rollouts/unscored"] == sum(found.values()) - found[4]
    assert "could not be verified" in caplog.text


def test_slow_disk_makes_a_run_slower_and_nothing_else(params, data_dir, finished, tmp_path, monkeypatch):
    synchronise, waited = os.fsync, []

    def slow(descriptor: int) -> None:
        time.sleep(0.02)
        waited.append(descriptor)
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    run = new_run(params, data_dir, tmp_path)
    train(run)
    assert len(waited) > 50
    assert fingerprints(run) == fingerprints(finished)


def test_c73_statuses_of_the_rollouts_add_up_in_every_step(finished):
    for forest, line in zip(forests(finished), finished.metrics(), strict=True):
        leaves = [n for n in forest.nodes if n.is_terminal]
        assert line["rollouts/sampled"] == len(leaves) == line["budget/leaves"]
        assert line["rollouts/verified"] == sum(n.status == Status.OK and n.reward is not None for n in leaves)
        assert line["rollouts/sampled"] == line["rollouts/verified"] + line["rollouts/unscored"]
        assert line["rollouts/verified"] == line["rollouts/admitted"] + line["rollouts/without_contrast"]
        assert line["rollouts/admitted"] == line["rollouts/trained"] + line["rollouts/untrained"]
        assert 0 < line["rollouts/trained"] <= line["rollouts/admitted"] < line["rollouts/sampled"]


def test_c77_finished_iteration_is_a_few_files_and_none_for_each_tree(finished, tmp_path):
    run = Run(tmp_path / "r")
    shutil.copytree(finished.path, run.path)
    for number in (0, 1):
        retain.fn(run.path, number)
    assert {p.name for p in run.iteration(0).iterdir() if p.is_file()} == {  # so 100 iterations are some 400 files
        "forest.parquet",
        "scored.parquet",
        "manifest.json",
        "metrics.json",
    }
    assert len({p.name for p in run.iteration(1).iterdir() if p.is_file()}) == 5  # and the page


def test_c72_c76_numbers_of_any_kind_are_written_and_those_not_finite_are_counted(finished):
    forest, stages = forests(finished)[0], read_stages(finished.iteration(0))

    def line(**metrics):
        changed = stages | {"update_policy": {**stages["update_policy"], "metrics": metrics}}
        return iteration_metrics(0, forest, finished.params, changed, 1.0)

    half = line(loss=np.float32(0.5), steps=np.int64(3))
    assert json.loads(json.dumps(half)) == half
    assert (half["policy/loss"], half["policy/steps"]) == (0.5, 3)
    broken = line(loss=np.float32("nan"), steps=float("inf"))
    assert (broken["policy/loss"], broken["policy/steps"]) == (None, None)
    assert broken["metrics/not_finite"] == half["metrics/not_finite"] + 2
