"""Any prompts as splits and a card: disjoint, complete, the same everywhere."""

from __future__ import annotations

import random

import pytest

from components.environments.dataset import load_prompts, write_splits
from components.environments.search.questions import make_prompt
from components.errors import UserError
from components.storage import content_hash, read_json

PROMPTS = [make_prompt(f"question {n}?", "x" * (n + 1), []) for n in range(20)]


def splits(folder) -> dict[str, list]:
    return {name: load_prompts(folder / f"{name}.parquet") for name in ("train", "val", "test")}


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        (None, (16, 2, 2)),
        ({"train": 0.8, "test": 0.2}, (16, 0, 4)),
        ({"train": 0.33, "val": 0.33, "test": 0.34}, (7, 6, 7)),
        ({"train": 10, "val": 3, "test": 2}, (10, 3, 2)),
        ({"test": 20}, (0, 0, 20)),
        ({"test": 1.0}, (0, 0, 20)),
    ],
)
def test_splits_have_their_sizes_and_are_disjoint(tmp_path, sizes, counts):
    written = splits(write_splits(tmp_path / "d", PROMPTS, sizes))
    assert tuple(len(rows) for rows in written.values()) == counts
    ids = [p.prompt_id for rows in written.values() for p in rows]
    assert len(set(ids)) == sum(counts)
    assert {p.prompt_id: p for rows in written.values() for p in rows}.items() <= {
        p.prompt_id: p for p in PROMPTS
    }.items()


def test_the_order_of_the_file_does_not_matter(tmp_path):
    shuffled = random.Random(0).sample(PROMPTS, len(PROMPTS))
    a, b = write_splits(tmp_path / "a", PROMPTS), write_splits(tmp_path / "b", shuffled)
    assert content_hash(a) == content_hash(b)


def test_given_splits_keep_their_order_and_a_missing_one_is_empty(tmp_path):
    written = splits(write_splits(tmp_path / "d", {"train": PROMPTS[5:], "test": PROMPTS[:5]}))
    assert written == {"train": PROMPTS[5:], "val": [], "test": PROMPTS[:5]}


def test_card_says_what_the_data_are(tmp_path):
    facts = {"task": "multihop", "source": "local file", "licence": "CC BY-SA 4.0"}
    given = {"train": PROMPTS[:3], "test": PROMPTS[3:4]}
    card = read_json(
        write_splits(tmp_path / "d", given, card=facts, count_tokens=lambda t: len(t.split())) / "card.json"
    )
    assert facts.items() <= card.items()
    assert card["splits"]["train"] == {
        "prompts": 3,
        "question_characters": {"least": 11, "median": 11.0, "most": 11},
        "question_tokens": {"least": 2, "median": 2.0, "most": 2},
        "answer_characters": {"least": 1, "median": 2.0, "most": 3},
        "answer_tokens": {"least": 1, "median": 1.0, "most": 1},
    }
    assert card["splits"]["val"]["prompts"] == 0
    assert card["sha256"]["test"] == content_hash(tmp_path / "d" / "test.parquet")
    other = read_json(write_splits(tmp_path / "e", {"train": PROMPTS[:3]}) / "card.json")
    assert other["data_hash"] != card["data_hash"]


@pytest.mark.parametrize(
    ("prompts", "sizes", "message"),
    [
        ({"train": PROMPTS[:5], "test": PROMPTS[4:6]}, None,
         rf"{PROMPTS[4].prompt_id} .*'question 4\?'.* in train and test"),
        ({"val": [PROMPTS[0]] * 2}, None, rf"{PROMPTS[0].prompt_id} .* is in val twice"),
        (PROMPTS + PROMPTS[7:8], None, rf"{PROMPTS[7].prompt_id} .* is in "),
        ({"dev": PROMPTS}, None, r"unknown split 'dev'; splits are train, val, test"),
        ({}, None, "no prompts to write"),
        ([], None, "no prompts to write"),
        ({"train": PROMPTS}, {"train": 5}, "are for prompts that are not split yet"),
        (PROMPTS, {"train": 21}, "ask for 21 prompts of 20"),
        (PROMPTS, {"train": 0.9, "test": 0.2}, "add up to more than 1"),
        (PROMPTS, {"train": 0.5, "test": 2}, "give numbers of prompts"),
        (PROMPTS, {"train": -1}, "none negative"),
    ],
)  # fmt: skip
def test_overlap_and_impossible_sizes_are_clear_errors_and_nothing_is_written(tmp_path, prompts, sizes, message):
    with pytest.raises(UserError, match=message):
        write_splits(tmp_path / "d", prompts, sizes)
    assert not (tmp_path / "d").exists()


def test_writing_again_replaces_whole(tmp_path):
    write_splits(tmp_path / "d", PROMPTS)
    assert len(splits(write_splits(tmp_path / "d", {"test": PROMPTS[:2]}))["train"]) == 0
