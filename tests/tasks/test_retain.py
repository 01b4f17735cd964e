"""What a run keeps, on folders with a file each in the place of policies, predictors and forests."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from components.storage import content_hash, write_parquet, write_sealed
from tasks import retain as module
from tasks.retain import SUBSUMED, retain
from tasks.stage import read_stages
from tasks.summary import finished_iterations
from tests.tasks.pipeline import new_run

STATE = {"update_policy": ("policy", "forest.parquet"), "refit_predictor": ("predictor",)}


def kept(run, name="policy"):
    """The versions whose policy is there, or the iterations whose forest is."""
    return sorted(int(path.parent.name) + (name == "policy") for path in run.path.glob(f"iterations/*/{name}"))


def grow(run, accuracies, start=0):
    """Iterations with these accuracies, each followed by retention; version k + 1 is made in iteration k."""
    for number, accuracy in enumerate(accuracies, start=start):
        folder, stages = run.iteration(number), {"record": {"outputs": {}}}
        for name in ("policy", "predictor"):
            (folder / name).mkdir(parents=True)
            (folder / name / "state").write_text(str(number))
        for name in ("scored.parquet", "forest.parquet", *(name for name in SUBSUMED if name.endswith("parquet"))):
            write_parquet(folder / name, pa.table({"a": [number]}))
        (folder / "trees.html").touch()
        for stage, names in STATE.items():
            stages[stage] = {"outputs": {name: content_hash(folder / name) for name in names}}
        write_sealed(folder / "manifest.json", stages)
        with run.metrics_path.open("a") as stream:
            stream.write(json.dumps({"iteration": number, "eval/accuracy": accuracy}) + "\n")
        retain.fn(run.path, number)


@pytest.fixture
def make(params, data_dir, tmp_path):
    return lambda replay=2, **run: new_run(params, data_dir, tmp_path, run=run, predictor={"replay": replay})


@pytest.mark.parametrize(
    ("keep", "accuracies", "versions"),
    [
        pytest.param(2, [0.1, 0.2, 0.9, *[0.3] * 6], [2, 8, 9], id="the best, however long ago"),
        pytest.param(2, [0.1, 0.2, 0.9, *[0.3] * 6, 0.95], [9, 10], id="the best until another is better"),
        pytest.param(3, [0.1, 0.8, 0.9], [1, 2, 3], id="the best until now, among the newest"),
        pytest.param(2, [0.1, 0.9, 0.9, 0.1, 0.1], [2, 4, 5], id="the later one of two that are equally good"),
        pytest.param(2, [None] * 5, [4, 5], id="no evaluations"),
        pytest.param(1, [0.1, 0.9, 0.3, 0.4, 0.2], [1, 4, 5], id="at least the newest and the one that was read last"),
    ],
)
def test_newest_policies_and_the_best_are_kept(make, keep, accuracies, versions):
    run = make(keep_policies=keep)
    grow(run, accuracies)
    assert kept(run) == versions
    assert kept(run, "predictor") == [version - 1 for version in versions]
    assert kept(run, "forest.parquet") == list(range(len(accuracies)))
    assert kept(run, "trees.html") == [len(accuracies) - 1]
    assert not [path for name in SUBSUMED for path in run.path.glob(f"iterations/*/{name}")]
    assert finished_iterations(run) == len(accuracies)


def test_best_from_before_a_run_that_went_back_is_looked_for_again(make):
    run = make()
    grow(run, [0.1, 0.9, 0.3])
    run.note(best=[9, 1.0])
    retain.fn(run.path, 2)
    assert run.manifest["best"] == [1, 0.9]


@pytest.mark.parametrize(
    ("replay", "keep_forests", "forests"), [(2, 1, [2, 3, 6, 7, 8]), (0, 1, [3, 7, 8]), (2, 4, [2, 3, 5, 6, 7, 8])]
)
def test_forests_of_the_refit_after_every_kept_policy_are_kept(make, replay, keep_forests, forests, caplog):
    """The best policy is version 4: the refit after it reads the forests 2 and 3; without replay, its own."""
    run = make(replay, keep_policies=2, keep_forests=keep_forests)
    grow(run, [0.1, 0.2, 0.3, 0.4, 0.9, *[0.3] * 4])
    assert kept(run) == [4, 8, 9]
    assert kept(run, "forest.parquet") == kept(run, "scored.parquet") == forests
    for number in (8, 7):  # with the newest policies lost, the run goes on from the best
        (run.iteration(number) / "policy" / "state").unlink()
    assert finished_iterations(run) == 4
    assert "going on from iteration 4" in caplog.text


@pytest.mark.parametrize("fatal", range(6))
def test_what_a_kill_left_goes_at_the_next_time(make, monkeypatch, fatal):
    run, drop, dropped = make(), module._drop, iter(range(100))
    with monkeypatch.context() as patched:
        patched.setattr(module, "_drop", lambda run, path: None)  # nothing goes: as with a larger keep_policies
        grow(run, [0.1, 0.9, 0.3, 0.4, 0.2, 0.1])

    def kill(run, path):
        if path.name in ("policy", "predictor") and next(dropped) == fatal:
            raise KeyboardInterrupt
        drop(run, path)

    with monkeypatch.context() as patched:
        patched.setattr(module, "_drop", kill)
        with pytest.raises(KeyboardInterrupt):
            retain.fn(run.path, 5)
    retain.fn(run.path, 5)
    assert kept(run) == [1, 5, 6]
    assert read_stages(run.iteration(0))  # what is left says what it was
