"""Opening a run: to begin, to continue, to replace (`--anew`), to look at; and what is refused, in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from components.errors import UserError
from components.params.load import merge
from components.params.root import Params, compose
from components.storage import read_json, write_json, write_sealed, write_text
from flows.show import report
from tasks.prepare import prepare_data, warm_up_policy
from tasks.run import EarlierVersionError, Run, find_run, lock, open_run
from tests.tasks.pipeline import new_run

KEPT = "iterations/0000/work.txt"


@pytest.fixture
def begun(params, data_dir, tmp_path) -> Run:
    """A run that has something in its folder."""
    run = new_run(params, data_dir, tmp_path)
    write_text(run.path / KEPT, "kept")
    return run


def changed(run: Run, **values) -> Params:
    return compose(merge([run.params.model_dump(), {"run": values}]))


def test_refused_command_changes_nothing_of_a_run_in_progress(begun):
    before = (begun.path / "params.yaml").read_bytes()
    with lock(begun), pytest.raises(UserError, match="written by another process"):
        open_run(changed(begun, iterations=9), "r")
    assert (begun.path / "params.yaml").read_bytes() == before


def test_other_parameters_are_refused_even_where_the_manifest_is_lost(begun):
    params = begun.params
    (begun.path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"run\.seed is 0 there and 9 here"):
        open_run(changed(begun, seed=9), "r")
    (begun.path / "params.yaml").unlink()
    with pytest.raises(UserError, match=r"no params\.yaml"):
        open_run(params, "r")


def test_parameters_that_were_changed_behind_the_runs_back_are_named(begun, tmp_path):
    params, path = begun.params, begun.path / "params.yaml"
    path.write_text(path.read_text().replace("root_units: 16", "root_units: 18"))
    for again in (lambda: open_run(params, "r"), lambda: find_run("r", tmp_path)):
        with pytest.raises(UserError, match=r"params\.yaml is not what the run began with \(allocation\.root_units is"):
            again()


def test_run_whose_data_changed_is_refused(begun):
    prepare_data.fn(begun.path)
    begun.note(data="another-data-set")
    with pytest.raises(UserError, match="began on the data set another-data-set, but its files now make"):
        prepare_data.fn(begun.path)


def test_another_first_policy_is_refused_while_it_is_still_read(params, data_dir, tmp_path, random_policy):
    policy = shutil.copytree(random_policy, tmp_path / "policy")
    run = new_run(params, data_dir, tmp_path, policy={"path": str(policy)})
    prepare_data.fn(run.path)
    warm_up_policy.fn(run.path)
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="began on another policy than"):
        warm_up_policy.fn(run.path)


def test_c77_run_begun_anew_keeps_what_was_interrupted_and_replaces_what_is_over(begun, tmp_path):
    open_run(begun.params, "r", anew=True)
    assert (begun.path / KEPT).exists()
    other = changed(begun, seed=1)
    with pytest.raises(UserError, match=r"run\.seed is 0 there and 1 here"):
        open_run(other, "r")
    with pytest.raises(UserError, match=r"--anew empties a run on this machine, not in run\.store"):
        open_run(changed(begun, store=f"file://{tmp_path}/store"), "r", anew=True)
    assert (begun.path / KEPT).exists()
    assert open_run(other, "r", anew=True).params.run.seed == 1
    assert not (begun.path / KEPT).exists()
    write_json(begun.path / "summary.json", {})
    open_run(other, "r")
    assert (begun.path / "summary.json").exists()
    open_run(other, "r", anew=True)
    assert not (begun.path / "summary.json").exists()


OLD_KEYS = {
    "environment": {"files": {}, "corpus": None, "retriever": None, "top_k": 3, "graded": False},
    "engine": {"top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "servers": 1},
    "predictor": {"path": None, "layers": 2, "decay": 0.8, "rollouts": 16},
    "update": {"trainer": "torch", "lora": {"rank": 0, "alpha": 32.0, "targets": ["all-linear"]}, "processes": 1},
}


@pytest.fixture
def old(begun) -> tuple[Run, Params]:
    """A run as an earlier version left it, and the parameters that continue it by this one's names."""
    params = begun.params
    tree = merge([read_json(begun.path / "manifest.json")["params"], OLD_KEYS])
    del tree["update"]["name"]
    (begun.path / "params.yaml").write_text(yaml.safe_dump(tree))
    write_sealed(begun.path / "manifest.json", {"run_id": "r", "mlflow_run_id": None, "params": tree})
    begun.metrics_path.write_text('{"iteration": 0, "budget/bare_rollouts": 8.0}\n')
    return Run(begun.path), params


@pytest.mark.parametrize("lost", [None, "params.yaml"])
def test_run_of_an_earlier_version_says_in_one_line_how_to_go_on(old, tmp_path, lost):
    run, params = old
    if lost:
        (run.path / lost).unlink()
    for look in (
        lambda: open_run(params, "r"),
        lambda: find_run("r", tmp_path),
        lambda: report("r", show=False, runs_dir=tmp_path),
    ):
        with pytest.raises(
            EarlierVersionError, match=r"^run r was begun by an earlier version .* with that version"
        ) as e:
            look()
        assert "--run-id" in str(e.value)
        assert "\n" not in str(e.value)
        assert len(str(e.value)) < 500
    assert (run.path / KEPT).exists()
    assert open_run(params, "r", anew=True).params == params
    assert not (run.path / KEPT).exists()


def test_parameters_of_an_earlier_version_without_their_manifest_name_file_and_key(old, tmp_path):
    run, params = old
    (run.path / "manifest.json").unlink()
    with pytest.raises(
        UserError, match=r"params\.yaml: environment\.corpus=None: no such key [^;]*; restore this file"
    ):
        open_run(params, "r")
    with pytest.raises(UserError, match="no run 'r'"):
        find_run("r", tmp_path)
    assert Path(run.path / KEPT).exists()
