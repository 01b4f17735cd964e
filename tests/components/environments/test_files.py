"""Data files of every form, and every way they are broken: one clear error that names file, row and field."""

from __future__ import annotations

import json
import sys
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.environments.files import field, read_rows
from components.errors import UserError

ROWS = [{"question": "Où?", "answer": "木"}, {"question": 'a "b",\nc', "answer": "d"}]
JSONL = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
CSV = 'question,answer\nOù?,木\n"a ""b"",\nc",d\n'


def write(tmp_path, name: str, content: str | bytes):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / name


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.jsonl", JSONL.replace("\n", "\r\n\r\n") + "\r\n"),
        ("a.json", json.dumps(ROWS)),
        ("a.csv", CSV),
    ],
)
def test_forms_give_the_same_rows(tmp_path, mark, name, content):
    assert read_rows(write(tmp_path, name, mark + content.encode())) == ROWS


def test_parquet_and_a_single_object(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet") == ROWS
    assert read_rows(str(write(tmp_path, "a.json", json.dumps(ROWS[0])))) == ROWS[:1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "a.jsonl holds no rows"),
        ("a.jsonl", "\n \n", "a.jsonl holds no rows"),
        ("a.json", "", "a.json holds no rows"),
        ("a.json", "[]", "a.json holds no rows"),
        ("a.csv", "", "a.csv holds no rows"),
        ("a.csv", "question,answer\n", "a.csv holds no rows"),
        ("a.jsonl", '{"a": 1}\n{"a":', r"a.jsonl, line 2: not valid JSON"),
        ("a.jsonl", '{"a": 1}\n\n{"a": NaN}', r"a.jsonl, line 3: not valid JSON: NaN is no JSON value"),
        ("a.json", '[{"a": -Infinity}]', r"a.json: not valid JSON: -Infinity is no JSON value"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}', r"a.jsonl, line 2: not valid UTF-8 at byte 7"),
        ("a.json", b'[{"a": "\xc3"}]', r"a.json: not valid UTF-8 at byte 8"),
        ("a.csv", b"question,answer\n\xff,x\n", r"a.csv: not valid UTF-8"),
        ("a.csv", "question,answer\na,b\nc\n", r"a.csv, row 1: it has fewer cells than the header"),
        ("a.csv", "question,answer\na,b,c\n", r"a.csv, row 0: it has more cells than the header"),
        ("a.csv", 'question,answer\n"a"b,c\n', r"a.csv: not a CSV file"),
        ("a.csv", "question,answer\n" + "x" * 200_000 + ",y\n", r"a.csv: not a CSV file: field larger than"),
        ("a.json", "[" * 100_000, r"a.json: not valid JSON"),
        ("a.json", '[{"a": 1}, "b", 7]', r"a.json, row 1: expected an object with fields, found str"),
        ("a.jsonl", "null", r"a.jsonl, row 0: expected an object with fields, found NoneType"),
        ("a.parquet", "PAR1 no", r"a.parquet: not a Parquet file"),
        ("a.parquet", "", r"a.parquet: not a Parquet file"),
        ("a.txt", "x", r"a.txt: unknown kind of data file; use .jsonl, .json, .parquet or .csv"),
    ],
)
def test_broken_file_is_one_clear_error(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        read_rows(write(tmp_path, name, content))
    assert "\n" not in str(error.value)


def test_missing_file_and_folder_are_clear_errors(tmp_path):
    with pytest.raises(UserError, match="no such data file"):
        read_rows(tmp_path / "none.jsonl")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserError, match=r"folder.json: Is a directory"):
        read_rows(tmp_path / "folder.json")


def test_field_takes_the_first_name_that_holds_something(tmp_path):
    row = {"a": None, "b": "  ", "c": "x", "n": 0, "flag": True}
    assert field(row, ("a", "b", "c"), tmp_path, 0) == "x"
    assert field(row, ("n",), tmp_path, 0, int) == 0
    assert field(row, ("flag",), tmp_path, 0, bool) is True


@pytest.mark.parametrize(
    ("row", "names", "kind", "message"),
    [
        ({"x": 1, "y": 2}, ("a", "b"), str, r"f.json, row 3: no field 'a' or 'b'; it has x, y"),
        ({}, ("a",), str, r"f.json, row 3: no field 'a'; it has none"),
        ({"a": None, "x": 1}, ("a",), str, r"f.json, row 3: field 'a' is empty; it has a, x"),
        ({"a": " \n"}, ("a",), str, r"f.json, row 3: field 'a' is empty"),
        ({"a": 1984}, ("a",), str, r"f.json, row 3: field 'a' should be str, found int 1984"),
        ({"a": float("nan")}, ("a",), str, r"f.json, row 3: field 'a' should be str, found float nan"),
        ({"a": True}, ("a",), int, r"f.json, row 3: field 'a' should be int, found bool True"),
        ({"a": ["x"] * 999}, ("a",), str, r"f.json, row 3: field 'a' should be str, found list \['x', 'x'"),
    ],
)
def test_field_names_file_row_field_and_value(row, names, kind, message):
    with pytest.raises(UserError, match=message) as error:
        field(row, names, "f.json", 3, kind)
    assert len(str(error.value)) < 200


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package `datasets`, which records what it is asked."""
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        if "away" in args[0]:
            raise ConnectionError("Couldn't reach the Hub\nand a long explanation")
        return [{"question": "q"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_hub_names_are_split_and_rows_returned(hub):
    assert read_rows("hub:owner/name:train") == [{"question": "q"}]
    assert read_rows("hub:owner/name:distractor:validation") == [{"question": "q"}]
    assert hub == [(("owner/name",), {"split": "train"}), (("owner/name", "distractor"), {"split": "validation"})]


@pytest.mark.parametrize("name", ["hub:", "hub:owner/name", "hub:owner/name:", "hub:a:b:c:d"])
def test_hub_name_of_another_form_is_a_clear_error(hub, name):
    with pytest.raises(UserError, match="expected hub:owner/name:split"):
        read_rows(name)
    assert hub == []


def test_hub_that_is_away_or_not_installed_is_one_line(hub, monkeypatch):
    message = r"hub:away/x:train: the data set cannot be loaded from the hub \(Couldn't reach the Hub\)"
    with pytest.raises(UserError, match=message):
        read_rows("hub:away/x:train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs optional packages; install them with: .*\[hub\]") as error:
        read_rows("hub:owner/name:train")
    assert "\n" not in str(error.value)
