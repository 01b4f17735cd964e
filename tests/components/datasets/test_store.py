"""Prompts on disk."""

from __future__ import annotations

import pytest

from components.config import EnvironmentParams
from components.datasets import load_prompts, prepare
from components.datasets.store import prompts_to_table
from components.errors import UserError
from components.storage import content_hash, read_json, write_parquet

SETTINGS = EnvironmentParams(train_prompts=200, val_prompts=50, test_prompts=50)


def test_splits_are_disjoint_by_content_and_complete(tmp_path):
    folder = prepare(SETTINGS, tmp_path)
    splits = {name: load_prompts(folder / f"{name}.parquet") for name in ("train", "val", "test")}
    assert {name: len(prompts) for name, prompts in splits.items()} == {"train": 200, "val": 50, "test": 50}
    ids = [p.prompt_id for prompts in splits.values() for p in prompts]
    assert len(set(ids)) == 300
    assert read_json(folder / "card.json")["sha256"]["val"] == content_hash(folder / "val.parquet")


def test_same_settings_find_the_same_folder_and_others_never_share_it(tmp_path):
    first = prepare(SETTINGS, tmp_path)
    stamp = (first / "train.parquet").stat().st_mtime_ns
    assert prepare(SETTINGS, tmp_path) == first
    assert (first / "train.parquet").stat().st_mtime_ns == stamp
    harder = prepare(SETTINGS.model_copy(update={"hops": {4: 1.0}}), tmp_path)
    assert harder != first
    assert {len(p.metadata["relations"]) for p in load_prompts(harder / "val.parquet")} == {4}


def test_data_are_the_same_on_every_machine(tmp_path):
    a, b = prepare(SETTINGS, tmp_path / "a"), prepare(SETTINGS, tmp_path / "b")
    assert content_hash(a / "train.parquet") == content_hash(b / "train.parquet")


@pytest.mark.parametrize("damage", ["card", "split", "missing", "swapped"])
def test_damaged_data_set_is_made_anew(tmp_path, damage):
    folder = prepare(SETTINGS, tmp_path)
    before = content_hash(folder)
    if damage == "card":
        (folder / "card.json").write_text("{")
    elif damage == "split":
        (folder / "train.parquet").write_bytes(b"PAR1")
    elif damage == "missing":
        (folder / "train.parquet").unlink()
    else:
        (folder / "test.parquet").write_bytes((folder / "val.parquet").read_bytes())
    assert content_hash(folder) != before
    assert content_hash(prepare(SETTINGS, tmp_path)) == before


def test_faults_name_file_row_and_field(tmp_path):
    prompts = load_prompts(prepare(SETTINGS, tmp_path) / "val.parquet")
    path = tmp_path / "twice.parquet"
    write_parquet(path, prompts_to_table([prompts[0], prompts[1], prompts[0]]))
    with pytest.raises(UserError, match=rf"{path}, row 2: prompt_id {prompts[0].prompt_id} occurs twice"):
        load_prompts(path)
    with pytest.raises(UserError, match="missing"):
        load_prompts(tmp_path / "none.parquet")
    path.write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="damaged"):
        load_prompts(path)
