"""Data files, prompts and forests that are damaged or strange: read whole, or one line that names file and row."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.base import Chat, Prompt
from components.environments.dataset import PROMPT_SCHEMA, load_prompts, prepare
from components.environments.files import read_rows
from components.environments.math.problems import load_math
from components.environments.multihop import MultiHop
from components.environments.search import Search, SearchParams
from components.environments.search.questions import load_qa
from components.environments.search.retrieval import load_corpus
from components.errors import UserError
from components.policy.renderer import Renderer
from components.storage import read_json, read_parquet, write_parquet
from components.tree.schema import NODE_SCHEMA, StopReason
from tasks.inputs import read_forest
from tests.components.policy.forests import forest
from tests.rubbish.kinds import SURROGATES, UNICODE, complaint, few, json_value
from tests.rubbish.test_rubbish_checkpoints import Bomb

SUFFIXES = [".jsonl", ".json", ".csv", ".parquet"]
FIELDS = ["question", "answer", "problem", "title", "text", "contents", "aliases", "golden_answers"]


@pytest.mark.parametrize("kind", UNICODE)
def test_prompts_of_every_kind_of_text_come_back_as_they_are(kind, tmp_path, random_policy):
    text = UNICODE[kind]
    file = tmp_path / f"Ünï {kind}.jsonl"
    rows = [{"question": f"{n} {text}", "answer": f"{text} {n}"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    params = SearchParams(files={"train": [str(file)]}, train_prompts=2, val_prompts=1, test_prompts=1)
    folder = prepare(Search(params), tmp_path)
    prompts = [p for split in ("train", "val", "test") for p in load_prompts(folder / f"{split}.parquet")]
    assert {(p.question, p.answer) for p in prompts} <= {(r["question"], r["answer"]) for r in rows} | {
        (r["question"].strip(), r["answer"].strip()) for r in rows
    }
    assert len({p.prompt_id for p in prompts}) == 4
    renderer = Renderer.load(random_policy)
    assert all(renderer.prompt_ids(Chat((("user", p.question),))) for p in prompts)


@pytest.mark.parametrize("kind", SURROGATES)
@pytest.mark.parametrize("field", ["question", "answer", "metadata"])
def test_half_a_surrogate_pair_names_the_line(kind, field, tmp_path):
    rows = [{"question": "a", "answer": "b", "metadata": "c"} for _ in range(2)]
    rows[1][field] = SURROGATES[kind]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: .* is half of a surrogate pair") as error:
        read_rows(tmp_path / "a.jsonl")
    str(error.value).encode()


def test_whole_surrogate_pairs_of_JSON_are_characters(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_rows(tmp_path / "a.jsonl") == [{"a": "😀"}]


def rows_or_one_line(path, *readers) -> None:
    for read in readers:
        message = complaint(lambda read=read: read(path))
        assert message is None or (str(path) in message and len(message) < 600)


@few(60)
@given(suffix=st.sampled_from(SUFFIXES), content=st.binary(max_size=80) | st.text(max_size=60))
def test_any_bytes_are_rows_or_one_line(tmp_path_factory, suffix, content):
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    rows_or_one_line(path, read_rows, load_qa, load_math, load_corpus)


@few(60)
@given(rows=st.lists(st.dictionaries(st.sampled_from(FIELDS), json_value), min_size=1, max_size=3))
def test_any_fields_are_prompts_or_one_line(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "fields.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows_or_one_line(path, load_qa, load_math, load_corpus)


NO_JSON, NO_OBJECT = "field 'metadata' is not valid JSON", "field 'metadata' should be an object"
PROMPTS = {  # what the metadata of the rows are, and what is said of the last one
    "id twice": (["{}", "{}"], "prompt_id a occurs twice"),
    "metadata of no JSON": (["{"], NO_JSON),
    "metadata of nothing": ([""], NO_JSON),
    "metadata of a list": (["[1]"], NO_OBJECT),
    "metadata of null": (["{}", "null"], NO_OBJECT),
    "metadata beyond depth": (["[" * 20_000], NO_JSON),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_bad_prompt_names_its_row(kind, tmp_path):
    metadata, message = PROMPTS[kind]
    ids = ["a"] * 2 if kind == "id twice" else ["a", "b"]
    columns = [ids[: len(metadata)], ["q"] * len(metadata), ["x"] * len(metadata), metadata]
    write_parquet(tmp_path / "train.parquet", pa.table(columns, schema=PROMPT_SCHEMA))
    with pytest.raises(UserError, match=f"row {len(metadata) - 1}: {message}"):
        load_prompts(tmp_path / "train.parquet")


def rewritten(**columns):
    """A forest's table with other values in some columns."""

    def damage() -> pa.Table:
        table = forest([1.0, 0.0]).to_table()
        for name, change in columns.items():
            at = table.schema.names.index(name)
            values = change(table.column(name).to_pylist())
            table = table.set_column(at, NODE_SCHEMA.field(at), pa.array(values, NODE_SCHEMA.field(at).type))
        return table

    return damage


FORESTS = {
    "parent of itself": rewritten(parent_id=lambda v: [*v[:-1], len(v) - 1]),
    "parent that comes later": rewritten(parent_id=lambda v: [v[0], 3, *v[2:]]),
    "parent of minus two": rewritten(parent_id=lambda v: [v[0], -2, *v[2:]]),
    "two roots": rewritten(parent_id=lambda v: [-1, -1, *v[2:]]),
    "ids out of order": rewritten(node_id=lambda v: v[::-1]),
    "ids twice": rewritten(node_id=lambda v: [0, 0, *v[2:]]),
    "another tree": rewritten(tree_id=lambda v: [*v[:-1], 9]),
    "lengths that differ": rewritten(logprobs=lambda v: [*v[:-1], []]),
    "masks that are missing": rewritten(is_action=lambda v: [[], *v[1:]]),
    "another column": lambda: forest([1.0]).to_table().append_column("more", pa.array([1] * 3)),
    "a column missing": lambda: forest([1.0]).to_table().drop_columns(["reward"]),
    "another type": lambda: forest([1.0]).to_table().cast(
        pa.schema([f if f.name != "reward" else pa.field("reward", pa.float64()) for f in NODE_SCHEMA])
    ),
    "prompts": lambda: pa.table([["a"], ["q"], ["x"], ["{}"]], schema=PROMPT_SCHEMA),
    "nothing": lambda: pa.table({}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORESTS)
def test_file_that_is_no_forest_is_one_line(kind, tmp_path):
    pq.write_table(FORESTS[kind](), tmp_path / "forest.parquet")
    with pytest.raises(UserError, match=str(tmp_path / "forest.parquet")) as error:
        read_forest(tmp_path / "forest.parquet")
    assert "\n" not in str(error.value)


def test_no_pickle_in_the_place_of_data_runs(tmp_path):
    bomb = tmp_path / "pwned"
    content = pickle.dumps(Bomb(bomb))
    for name in ("forest.parquet", "manifest.json", "questions.jsonl", "questions.parquet", "questions.csv", "c.json"):
        (tmp_path / name).write_bytes(content)
    readers = (read_forest, read_parquet, load_prompts, read_json, read_rows, load_corpus)
    assert all(complaint(lambda r=read, f=file: r(f)) for read in readers for file in tmp_path.iterdir())
    assert not bomb.exists()


@pytest.mark.parametrize("key", [b"ARROW:extension:name", b"pandas", b"ARROW:schema"])
def test_no_pickle_in_the_metadata_of_parquet_runs(tmp_path, key):
    """Old Arrow rebuilt Python's extension types, and pandas its objects, from pickles in a file's metadata."""
    bomb = tmp_path / "pwned"
    content = pickle.dumps(Bomb(bomb))
    inner = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": content}
    field = pa.field("question", pa.string(), metadata=inner)
    schema = pa.schema([field, pa.field("answer", pa.string())], metadata={key: content})
    pq.write_table(pa.table([["q"], ["a"]], schema=schema), tmp_path / "a.parquet")
    complaint(lambda: read_rows(tmp_path / "a.parquet"))
    complaint(lambda: read_forest(tmp_path / "a.parquet"))
    assert not bomb.exists()


def test_prompt_and_turn_of_a_hundred_thousand_tokens_are_taken(random_policy):
    chat = Chat((("user", "boss " * 100_000),))
    assert len(Renderer.load(random_policy).prompt_ids(chat)) > 100_000
    state = MultiHop().reset(Prompt("p", "?", "ann", {"seed": 1}))
    assert MultiHop().step(state, "x " * 100_000).stop_reason == StopReason.MALFORMED_ACTION


def test_file_name_that_is_no_text_is_one_line(tmp_path):
    name = str(tmp_path) + "/\udcff.jsonl"
    message = complaint(lambda: read_rows(Path(name)))
    assert message is not None
    assert "no such data file" in message
