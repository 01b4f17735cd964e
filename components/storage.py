"""Files that are whole or absent: a temporary sibling, fsync, a check of what was written, rename. Content hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from components.errors import UserError


@contextmanager
def atomic_path(path: Path, check: bool = True) -> Iterator[Path]:
    """Yields a temporary sibling of `path` to write a file or a directory to, and renames it to `path` on success.

    What was written is synchronised to disk and, unless `check` is off, read back (`unreadable`) before the rename. On
    failure the sibling is removed, and `path` is as it was.

    Raises:
        UserError: if the disk is full, the folder cannot be written to, or what was written is not whole.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove(temporary)
            yield temporary
            for file in [temporary, *temporary.rglob("*")] if temporary.is_dir() else [temporary]:
                _fsync(file)
            if check and (reason := unreadable(temporary, path.suffix)):
                raise UserError(
                    f"{path} was written without an error, but cannot be read back ({reason}); nothing was replaced; "
                    "check the disk, and run the same command again"
                )
            if path.is_dir():  # a directory cannot be renamed over another: move the old one aside first
                old = path.with_name(f".{path.name}.old-{os.getpid()}")
                path.rename(old)
                temporary.rename(path)
                _remove(old)
            else:
                temporary.replace(path)
            _fsync(path.parent)
    finally:
        with suppress(OSError):  # the first error is the one to tell
            _remove(temporary)


def unreadable(path: Path, suffix: str | None = None) -> str | None:
    """Why a file, or one in a folder, is not whole, as far as its form tells; None where nothing is wrong.

    A writer may return without an error and have written too little. Looked at are the header and the length of
    safetensors, the footer of Parquet, and all of JSON; other files are taken as they are. Values are not looked at.

    Args:
        path: The file or folder.
        suffix: What the file's name will end in; by default what it ends in.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return next((f"{file.name}: {reason}" for file in files if (reason := unreadable(file))), None)
    try:
        match path.suffix if suffix is None else suffix:
            case ".safetensors":
                with safe_open(path, framework="np"):  # which compares the header with the file's length
                    pass
            case ".parquet":
                pq.read_metadata(path)
            case ".json":
                value = json.loads(path.read_bytes())
                for name in set(value["weight_map"].values()) if path.name.endswith(".safetensors.index.json") else ():
                    if not (path.parent / name).is_file():
                        return f"{name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, SafetensorError) as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"
    return None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what a full or read-only disk raises into an error that says what to do."""
    try:
        yield
    except Exception as error:  # libraries wrap the system's errors in their own kinds
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise UserError(f"no space left to write {path}; free some and run the same command again") from error
        unwritable = PermissionError | NotADirectoryError | FileNotFoundError
        if isinstance(error, unwritable) or getattr(error, "errno", None) == errno.EROFS:
            advice = "mend its permissions, or choose another folder with --set run.runs_dir=FOLDER"
            raise UserError(f"cannot write {path}: {error}; {advice}") from error
        raise


def append_text(path: Path, text: str) -> None:
    """Appends to a file and synchronises it; raises `UserError` as `atomic_path` does."""
    with _explained(path), path.open("a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def sweep(folder: Path, age: float = 0.0) -> None:
    """Removes the temporary siblings that killed processes left below a folder, from `age` seconds on.

    Nobody may be writing there, unless `age` is longer than any write takes.
    """
    for pattern in (".*.tmp-*", ".*.old-*"):
        for left in list(folder.rglob(pattern)):
            with suppress(FileNotFoundError):  # another process sweeps as well
                if time.time() - left.lstat().st_mtime >= age:
                    _remove(left)


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n"


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object with its own hash in it, so that damage which is still JSON is noticed."""
    write_json(path, value | {"seal": value_hash(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads what `write_sealed` wrote.

    Raises:
        UserError: if it is missing or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("seal", None) != value_hash(value):
        raise UserError(f"{path} is damaged (it does not match its own hash); restore it, or start a new run")
    return value


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        UserError: if it is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or start a new run") from None


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table; raises `UserError` as `atomic_path` does, and where the file has another number of rows."""
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
        if (rows := pq.read_metadata(temporary).num_rows) != len(table):
            raise UserError(f"{path}: only {rows} of {len(table)} rows were written; run the same command again")


def read_parquet(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Reads a Parquet file whole.

    Raises:
        UserError: if it is missing, damaged, or its columns are not those of `schema`.
    """
    try:
        with pq.ParquetFile(path) as file:  # for one file in half the time of `read_table`, which reads data sets
            table = file.read(use_threads=False)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} is damaged ({reason}); delete it and run the same command again to make it anew"
        ) from None
    if schema is not None and not table.schema.equals(schema):
        raise UserError(f"{path} has the columns {table.schema.names}, expected {schema.names} with their types")
    return table


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of a directory's relative paths and contents (hidden files left out)."""
    if path.is_file():
        stat = path.stat()
        return _file_hash(path, stat.st_mtime_ns, stat.st_size)
    digest = hashlib.sha256()
    for file in sorted(f for f in path.rglob("*") if f.is_file() and not f.name.startswith(".")):
        digest.update(f"{file.relative_to(path)}\0{content_hash(file)}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _file_hash(path: Path, mtime_ns: int, size: int) -> str:
    """Hashes a file once for as long as its time and size stay."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def value_hash(value: Any) -> str:
    """SHA-256 of a JSON-like value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(to_plain(value), sort_keys=True).encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Turns numpy scalars, paths and non-finite floats into plain JSON values (NaN and infinities become null)."""
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
