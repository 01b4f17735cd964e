"""Which policies a run keeps, on folders without a policy in them."""

import json

import pytest

from tasks import retain as module
from tasks.retain import retain
from tests.tasks.pipeline import new_run


def policies(run):
    return sorted(int(path.parent.name) + 1 for path in run.path.glob("iterations/*/policy"))


def grow(run, accuracies, start=0):
    """Iterations with these accuracies, each followed by retention; version k + 1 is made in iteration k."""
    for number, accuracy in enumerate(accuracies, start=start):
        for name in ("policy", "predictor"):
            (run.iteration(number) / name).mkdir(parents=True)
        with run.metrics_path.open("a") as stream:
            stream.write(json.dumps({"iteration": number, "eval/accuracy": accuracy}) + "\n")
        retain.fn(run.path, number)


@pytest.fixture
def run(params, data_dir, tmp_path):
    return new_run(params, data_dir, tmp_path, run={"keep_policies": 2})


def test_the_best_goes_once_another_is_better_however_long_ago_it_was(run):
    grow(run, [0.1, 0.2, 0.9, *[0.3] * 6])
    assert policies(run) == [2, 8, 9]
    grow(run, [0.95], start=9)
    assert policies(run) == [9, 10]


def test_the_best_until_now_stays_while_it_is_among_the_newest(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path, run={"keep_policies": 3})
    grow(run, [0.1, 0.8, 0.9])
    assert policies(run) == [1, 2, 3]


def test_only_the_newest_iteration_has_its_page(run):
    for number in range(3):
        run.iteration(number).mkdir(parents=True)
        (run.iteration(number) / "trees.html").touch()
        grow(run, [0.1], start=number)
    assert {path.parent.name for path in run.path.glob("iterations/*/*.html")} == {"0002"}


def test_a_run_without_evaluations_keeps_the_newest(run):
    grow(run, [None] * 5)
    assert policies(run) == [4, 5]


@pytest.mark.parametrize("fatal", range(6))
def test_what_a_kill_left_goes_at_the_next_time(run, monkeypatch, fatal):
    dropped = iter(range(100))

    def kill(run, path):
        if path.name in ("policy", "predictor") and next(dropped) == fatal:
            raise KeyboardInterrupt
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    with monkeypatch.context() as patched:
        patched.setattr(module, "_made", lambda run, version: [])  # nothing goes: as with a larger keep_policies
        grow(run, [0.1, 0.9, 0.3, 0.4, 0.2, 0.1])
    with monkeypatch.context() as patched:
        patched.setattr(module, "_drop", kill)
        with pytest.raises(KeyboardInterrupt):
            retain.fn(run.path, 5)
    retain.fn(run.path, 5)
    assert policies(run) == [1, 5, 6]
