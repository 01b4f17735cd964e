"""A writer that returns without an error and has written too little: nothing is replaced or noted."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from components.errors import UserError
from components.policy.trainers import trainable
from components.policy.trainers.torch import trainer
from components.predictor import policy_features
from components.storage import atomic_path, content_hash, unreadable, write_parquet, write_sealed
from tasks.run import Run
from tasks.stage import read_stages
from tasks.summary import finished_iterations
from tests.tasks.pipeline import fingerprints, train

TENSORS = save({"a": np.ones((100, 10), np.float32), "b": np.zeros(7)})
PARTS = {
    "weights of 500 bytes": ("model.safetensors", TENSORS[:500]),
    "weights without their last byte": ("model.safetensors", TENSORS[:-1]),
    "weights and more": ("model.safetensors", TENSORS + b"\0"),
    "no weights": ("model.safetensors", b""),
    "half of a state": ("posterior.json", b'{"p": [1.0'),
    "index of weights that are not there": ("model.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}'),
    "half of a table": ("forest.parquet", pa.BufferOutputStream),
}


@pytest.mark.parametrize("kind", PARTS)
def test_what_is_not_whole_replaces_nothing(tmp_path, kind):
    name, content = PARTS[kind]
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"a": list(range(1000))}), stream := content())
        content = stream.getvalue().to_pybytes()[:-100]
    folder, file = tmp_path / "folder", tmp_path / name
    folder.mkdir()
    file.touch()

    def write():
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            (temporary / name).write_bytes(content)

    with pytest.raises(UserError, match=r"cannot be read back .*; nothing was replaced"):
        write()
    if "index" not in kind:  # which is of nothing but a folder
        with pytest.raises(UserError, match="cannot be read back"), atomic_path(file) as temporary:
            temporary.write_bytes(content)
    assert not list(folder.iterdir())
    assert not file.read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"folder", name}


def test_what_is_whole_is_readable(tmp_path):
    for name, content in {
        "a.safetensors": TENSORS,
        "b.json": b"{}",
        "c.jinja": b"{",
        "none.safetensors": save({}),
    }.items():
        (tmp_path / name).write_bytes(content)
    assert unreadable(tmp_path) is None


def test_table_that_lost_rows_is_not_kept(tmp_path, monkeypatch):
    original = pq.write_table
    monkeypatch.setattr(pq, "write_table", lambda table, *rest, **named: original(table.slice(1), *rest, **named))
    with pytest.raises(UserError, match=r"a\.parquet: only 2 of 3 rows were written"):
        write_parquet(tmp_path / "a.parquet", pa.table({"a": [1, 2, 3]}))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def halfway(finished, tmp_path) -> Run:
    """A copy of a finished run, without its second iteration."""
    run = Run(shutil.copytree(finished.path, tmp_path / "r"))
    shutil.rmtree(run.iteration(1))
    return run


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize(
    ("module", "writer", "file", "stage"),
    [
        (trainable, "save_model", "policy/model.safetensors", "update_policy"),
        (trainer, "save_moments", "policy/optimizer.safetensors", "update_policy"),
        (policy_features, "save_state", "predictor/head.safetensors", "refit_predictor"),
    ],
)
def test_run_stops_at_a_state_that_was_cut_and_goes_on_from_the_last_good_one(
    halfway, finished, monkeypatch, module, writer, file, stage
):
    original, before = getattr(module, writer), fingerprints(halfway)
    folder, name = file.split("/")

    def write(*args, **named) -> None:
        original(*args, **named)
        target = next(path for path in args if hasattr(path, "parent"))
        cut(target if target.is_file() else target / name)

    with monkeypatch.context() as patched:
        patched.setattr(module, writer, write)
        with pytest.raises(UserError, match=rf"/{folder} was written without an error.*{name}: SafetensorError"):
            train(halfway)
    assert stage not in read_stages(halfway.iteration(1))
    assert not (halfway.iteration(1) / folder).exists()
    assert before.items() <= fingerprints(halfway).items()
    train(halfway)
    assert fingerprints(halfway) == fingerprints(finished)


@pytest.mark.parametrize("file", ["policy/model.safetensors", "predictor/head.safetensors", "forest.parquet"])
def test_state_that_a_manifest_vouches_for_and_that_does_not_load_is_left_out(finished, tmp_path, file, caplog):
    """As an earlier version may have left it: cut before its hash was taken."""
    run = Run(shutil.copytree(finished.path, tmp_path / "r"))
    cut(run.iteration(1) / file)
    stages, output = read_stages(run.iteration(1)), file.partition("/")[0]
    stage = next(name for name, entry in stages.items() if output in entry["outputs"])
    stages[stage]["outputs"][output] = content_hash(run.iteration(1) / output)
    write_sealed(run.iteration(1) / "manifest.json", stages)
    assert finished_iterations(run) == 1
    assert f"{output} is missing or damaged; going on from iteration 1" in caplog.text
    train(run)
    assert fingerprints(run) == fingerprints(finished)
