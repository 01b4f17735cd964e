"""The leaderboard's prompts: ids by content, splits without overlap, faults that name the row."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")

from components.environments.dataset import load_prompts, prompts_to_table
from components.environments.functions import bfcl
from components.environments.functions.prompts import CATEGORIES, MULTI_TURN, SINGLE_TURN, load_bfcl, split_bfcl
from components.errors import UserError
from components.storage import write_parquet


def test_every_category_loads_with_ids_of_its_own():
    prompts = load_bfcl(CATEGORIES)
    counts = {c: sum(p.metadata["category"] == c for p in prompts) for c in CATEGORIES}
    assert [counts[category] for category in MULTI_TURN] == [200] * 4
    assert (counts["simple_python"], counts["irrelevance"], counts["live_multiple"]) == (400, 240, 1053)
    assert len({p.prompt_id for p in prompts}) == len(prompts)
    assert [p.prompt_id for p in load_bfcl(["parallel"])] == [p.prompt_id for p in load_bfcl(["parallel"])]


def test_prompts_survive_the_parquet_file(tmp_path):
    prompts = load_bfcl(["multi_turn_miss_func", "parallel"])
    write_parquet(tmp_path / "train.parquet", prompts_to_table(prompts))
    assert load_prompts(tmp_path / "train.parquet") == prompts


def test_split_is_80_to_20_in_every_category_and_keeps_versions_of_a_scenario_together():
    prompts = load_bfcl(MULTI_TURN)
    split = split_bfcl(prompts)
    assert not {p.prompt_id for p in split["train"]} & {p.prompt_id for p in split["test"]}
    for category in MULTI_TURN:
        assert [sum(p.metadata["category"] == category for p in split[s]) for s in ("train", "test")] == [160, 40]
    scenarios = {s: {p.metadata["source_id"].rpartition("_")[2] for p in split[s]} for s in split}
    assert not scenarios["train"] & scenarios["test"]
    alone = split_bfcl([p for p in reversed(prompts) if p.metadata["category"] == MULTI_TURN[2]])
    assert {p.prompt_id for p in alone["test"]} <= {p.prompt_id for p in split["test"]}


def test_single_turn_prompts_of_one_question_fall_on_the_same_side():
    prompts = load_bfcl(SINGLE_TURN)
    split = split_bfcl(prompts)
    assert not {p.question for p in split["train"]} & {p.question for p in split["test"]}
    assert 0.18 < len(split["test"]) / len(prompts) < 0.22


def test_faults_name_the_category_the_file_and_the_row(monkeypatch):
    with pytest.raises(UserError, match="category 'multi_turn' is not known; choose one of multi_turn_base"):
        load_bfcl(["multi_turn"])
    rows = bfcl.read_data("BFCL_v4_parallel.json")
    truths = bfcl.read_data("possible_answer/BFCL_v4_parallel.json")
    del rows[3]["question"]
    monkeypatch.setattr(bfcl, "read_data", lambda name: truths if name.startswith("possible") else rows)
    with pytest.raises(UserError, match=r"BFCL_v4_parallel.json, row 3: KeyError: 'question'"):
        load_bfcl(["parallel"])
    monkeypatch.setattr(bfcl, "read_data", lambda name: [] if name.startswith("possible") else rows[:1])
    with pytest.raises(UserError, match=r"row 0: KeyError: 'parallel_0'"):
        load_bfcl(["parallel"])


def test_damaged_data_names_its_file(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(bfcl, "_root", lambda: tmp_path)
    with pytest.raises(UserError, match=r"BFCL_v4_parallel.json is missing; install bfcl-eval=="):
        load_bfcl(["parallel"])
    (tmp_path / "data" / "BFCL_v4_parallel.json").write_text(json.dumps({"id": "x"}) + "\n{")
    with pytest.raises(UserError, match=r"BFCL_v4_parallel.json is damaged"):
        load_bfcl(["parallel"])
