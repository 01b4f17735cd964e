"""Files are whole or absent, whatever goes wrong while they are written."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from components.errors import UserError
from components.storage import (
    append_text,
    atomic_path,
    content_hash,
    read_json,
    read_parquet,
    read_sealed,
    sweep,
    value_hash,
    write_json,
    write_parquet,
    write_sealed,
    write_text,
)

FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL, ids=["system", "wrapped by a library"])
def test_full_disk_is_one_clear_error_and_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "policy"
    write_text(path, "old")

    def write() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(UserError, match=f"no space left to write {path}"):
        write()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "policy"
    for content in ("a", "b"):
        with atomic_path(path) as temporary:
            temporary.mkdir()
            (temporary / "weights").write_text(content)

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.mkdir()
            (temporary / "weights").write_text("c")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (path / "weights").read_text() == "b"
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_file_where_a_folder_should_be_is_said_so(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "runs" / "r" / "params.yaml", "")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"a": 1} x'])
def test_damaged_json_names_the_file(tmp_path, content):
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(UserError, match=r"m\.json is damaged"):
        read_json(tmp_path / "m.json")


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "empty":
        content = bytearray()
    elif how == "truncated":
        content = content[: len(content) // 2]
    elif how == "foreign":
        content = bytearray(b"not a table at all")
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["empty", "truncated", "foreign"])
def test_damaged_parquet_names_the_file_and_what_to_do(tmp_path, how):
    path = tmp_path / "t.parquet"
    write_parquet(path, pa.table({"a": list(range(100))}))
    damage(path, how)
    with pytest.raises(UserError, match=r"t\.parquet is damaged .*run the same command again"):
        read_parquet(path)


def test_other_columns_are_not_read(tmp_path):
    write_parquet(tmp_path / "t.parquet", pa.table({"a": [1]}))
    with pytest.raises(UserError, match=r"columns \['a'\], expected \['b'\]"):
        read_parquet(tmp_path / "t.parquet", pa.schema([("b", pa.int64())]))


def test_hash_follows_content_not_time_or_hidden_files(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        (folder / "x").mkdir(parents=True)
        (folder / "x" / "f").write_text("1")
    (b / ".cache").write_text("2")
    assert content_hash(a) == content_hash(b)
    (b / "x" / "f").write_text("2")
    assert content_hash(a) != content_hash(b)
    assert value_hash({"a": 1, "b": 2}) == value_hash({"b": 2, "a": 1})


def test_numpy_scalars_and_non_finite_numbers_are_plain_json(tmp_path):
    write_json(tmp_path / "m.json", {"a": np.float32(0.5), "b": float("nan"), "c": [np.int64(3), float("inf")]})
    assert read_json(tmp_path / "m.json") == {"a": 0.5, "b": None, "c": [3, None]}


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path):
    (tmp_path / "0001" / ".policy.old-77").mkdir(parents=True)
    (tmp_path / "0001" / ".policy.old-77" / "weights").touch()
    (tmp_path / "0001" / ".manifest.json.tmp-77").touch()
    (tmp_path / "0001" / "manifest.json").touch()
    (tmp_path / ".lock").touch()
    sweep(tmp_path)
    assert {p.name for p in tmp_path.rglob("*")} == {"0001", "manifest.json", ".lock"}


def test_any_flipped_bit_of_a_sealed_file_is_damage(tmp_path):
    path = tmp_path / "m.json"
    write_sealed(path, {"run_id": "r", "best": [3, 0.5], "params": {"hops": {1: 0.5}}})
    whole = path.read_bytes()
    assert read_sealed(path) == {"run_id": "r", "best": [3, 0.5], "params": {"hops": {"1": 0.5}}}
    for position in range(len(whole) - 1):  # the last byte is a line's end
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"m\.json is damaged"):
            read_sealed(path)


def test_foreign_json_is_not_taken_for_a_sealed_file(tmp_path):
    for value in ({}, [], {"run_id": "r"}):
        write_json(tmp_path / "m.json", value)
        with pytest.raises(UserError, match=r"m\.json is damaged"):
            read_sealed(tmp_path / "m.json")


def test_young_siblings_are_spared_where_others_may_be_writing(tmp_path):
    for name, hours in (("old", 25), ("young", 1)):
        (tmp_path / f".{name}.tmp-7").touch()
        os.utime(tmp_path / f".{name}.tmp-7", (time.time() - 3600 * hours,) * 2)
    sweep(tmp_path, age=86400)
    assert [p.name for p in tmp_path.iterdir()] == [".young.tmp-7"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_line_that_does_not_fit_on_the_disk_is_one_clear_line():
    with pytest.raises(UserError, match="no space left to write /dev/full"):
        append_text(Path("/dev/full"), "a line\n")
