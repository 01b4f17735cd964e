"""Rows of data files, whatever their form; every fault names file, row and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from components.errors import UserError


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a .jsonl, .json (a list of objects), .parquet or .csv file.

    Raises:
        UserError: if the file is missing, empty or damaged, or a row is no object.
    """
    try:
        rows = _read(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such data file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if not rows:
        raise UserError(f"{path} holds no rows")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: expected an object with fields, found {type(row).__name__}")
    return rows


def field(row: dict[str, Any], names: tuple[str, ...], path: Path, number: int, kind: type = str) -> Any:
    """The first of `names` that the row has, which must be of type `kind`.

    Raises:
        UserError: if it has none of them, or the value has another type.
    """
    for name in names:
        if row.get(name) is not None:
            if not isinstance(row[name], kind):
                found = type(row[name]).__name__
                raise UserError(f"{path}, row {number}: field {name!r} should be {kind.__name__}, found {found}")
            return row[name]
    raise UserError(
        f"{path}, row {number}: no field {' or '.join(map(repr, names))}; it has {', '.join(row) or 'none'}"
    )


def _read(path: Path) -> list[Any]:
    match path.suffix:
        case ".jsonl":
            rows = []
            for number, line in enumerate(path.read_bytes().splitlines()):
                if line.strip():
                    try:
                        rows.append(json.loads(line))
                    except ValueError as error:
                        raise UserError(f"{path}, line {number + 1}: not valid JSON: {error}") from None
            return rows
        case ".json":
            try:
                value = json.loads(path.read_bytes())
            except ValueError as error:
                raise UserError(f"{path}: not valid JSON: {error}") from None
            return value if isinstance(value, list) else [value]
        case ".parquet":
            import pyarrow.parquet as pq
            from pyarrow import ArrowException

            try:
                return list(pq.read_table(path).to_pylist())
            except ArrowException as error:
                raise UserError(f"{path}: not a Parquet file: {error}") from None
        case ".csv":
            import csv

            with path.open(newline="", encoding="utf-8") as stream:
                return list(csv.DictReader(stream))
    raise UserError(f"{path}: unknown kind of data file; use .jsonl, .json, .parquet or .csv")
