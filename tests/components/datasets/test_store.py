"""Prompts on disk."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from components.datasets.builtin import BUILTIN
from components.datasets.chains import draw_chains, zipf

from components.environments.base import EnvironmentParams
from components.environments.dataset import Prompts, load_prompts, prepare, prompts_to_table
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


def test_prompts_are_made_of_their_rows_when_asked_for(tmp_path):
    prompts = load_prompts(prepare(SETTINGS, tmp_path) / "val.parquet")
    path, bad = tmp_path / "some.parquet", replace(prompts[1], metadata=["no object"])
    write_parquet(path, prompts_to_table([prompts[0], bad, prompts[2]]))
    split = Prompts(path)
    assert list(split) == [p.prompt_id for p in prompts[:3]]
    assert split[prompts[2].prompt_id] == prompts[2]
    assert split[prompts[2].prompt_id] is split[prompts[2].prompt_id]
    with pytest.raises(UserError, match=rf"{path}, row 1: field 'metadata' should be an object"):
        split[bad.prompt_id]
    with pytest.raises(KeyError):
        split["none"]


@pytest.mark.parametrize("weights", [None, zipf(5, 1.3)])
def test_chains_are_those_that_generator_choice_draws(weights):
    words, hops, rng = list("abcde"), {1: 0.2, 3: 0.5, 2: 0.3}, np.random.default_rng(7)
    p = np.full(5, 0.2) if weights is None else weights / weights.sum()
    for chain in itertools.islice(draw_chains(np.random.default_rng(7), words, hops, weights), 200):
        size = rng.choice([1, 2, 3], p=[0.2, 0.3, 0.5])
        assert chain == [words[i] for i in rng.choice(5, size=size, p=p)]


def test_more_prompts_than_there_are_is_an_error_not_an_endless_search(tmp_path):
    stream = BUILTIN["multihop"]
    same = next(stream.generate(np.random.default_rng(0), {2: 1.0}, None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUILTIN, "multihop", replace(stream, generate=lambda rng, hops, weights: itertools.repeat(same)))
        with pytest.raises(UserError, match=r"train_prompts=200: multihop .* no more than about 1 different"):
            prepare(SETTINGS, tmp_path)


def write_rows(path, *rows):
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    return str(path)


def test_a_row_that_two_files_share_counts_once(tmp_path):
    one = write_rows(tmp_path / "a.jsonl", *((f"{n}+1?", str(n + 1)) for n in range(20)))
    two = write_rows(tmp_path / "b.jsonl", *((f"{n}+1?", str(n + 1)) for n in range(15, 30)))
    settings = EnvironmentParams(name="math", files={"train": [one, two]}, val_prompts=2, test_prompts=3)
    assert len(load_prompts(prepare(settings, tmp_path / "data") / "train.parquet")) == 25


def test_a_question_in_two_splits_is_refused_whatever_its_answer(tmp_path):
    train = write_rows(tmp_path / "a.jsonl", *((f"{n}+1?", str(n + 1)) for n in range(20)))
    test = write_rows(tmp_path / "b.jsonl", ("3 + 1?", "4"), ("3+1?", "four"))
    settings = EnvironmentParams(name="math", files={"train": [train], "test": [test]}, val_prompts=2)
    with pytest.raises(UserError, match=r"the question '3\+1\?' is in (train|val|test) and (train|val|test)"):
        prepare(settings, tmp_path / "data")


def test_a_split_without_prompts_is_refused(tmp_path):
    train = write_rows(tmp_path / "a.jsonl", ("1+1?", "2"), ("2+2?", "4"))
    with pytest.raises(UserError, match="no prompt is left for the split"):
        prepare(EnvironmentParams(name="math", files={"train": [train]}, val_prompts=1, test_prompts=1), tmp_path / "d")
