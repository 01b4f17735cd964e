"""Tasks whose prompts lie in data files: their rows, whatever the form, and how they become splits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import Field

from components.environments.base import Environment, EnvironmentParams, Prompt, Splits
from components.errors import MissingExtraError, UserError

HUB = "hub:"


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """Rows of a .jsonl, .json (a list of objects), .parquet or .csv file, or of a data set on the Hugging Face hub.

    Text is UTF-8, with or without a byte order mark. NaN and infinities are no JSON and are refused.

    Args:
        path: The file, or ``hub:owner/name:split`` (``hub:owner/name:config:split`` where a data set has several).

    Raises:
        UserError: if the file is missing, empty or damaged, a row is no object, or the hub cannot be reached.
    """
    try:
        rows = _hub(str(path)) if str(path).startswith(HUB) else _read(Path(path))
    except FileNotFoundError:
        where = "" if Path(path).is_absolute() else f" in {Path.cwd()}, where relative paths begin"
        raise UserError(f"{path}: no such data file{where}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if not rows:
        raise UserError(f"{path} holds no rows")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: expected an object with fields, found {type(row).__name__}")
    return rows


def field(row: dict[str, Any], names: tuple[str, ...], path: Path | str, number: int, kind: type = str) -> Any:
    """The first of `names` that the row has, which must be of type `kind`; null and blank text count as absent.

    Raises:
        UserError: if it has none of them, or the value has another type.
    """
    for name in names:
        value = row.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            found = f"{type(value).__name__} {str(value)[:40]}"
            raise UserError(f"{path}, row {number}: field {name!r} should be {kind.__name__}, found {found}")
        return value
    empty = [name for name in names if name in row]
    what = f"field {empty[0]!r} is empty" if empty else f"no field {' or '.join(map(repr, names))}"
    raise UserError(f"{path}, row {number}: {what}; it has {', '.join(map(str, row)) or 'none'}")


def _read(path: Path) -> list[Any]:
    match path.suffix:
        case ".jsonl":
            lines = enumerate(path.read_bytes().splitlines(), start=1)
            return [_json(line, f"{path}, line {number}") for number, line in lines if line.strip()]
        case ".json":
            text = path.read_bytes()
            value = _json(text, str(path)) if text.strip() else []
            return value if isinstance(value, list) else [value]
        case ".parquet":
            import pyarrow.parquet as pq
            from pyarrow import ArrowException

            try:
                return list(pq.read_table(path).to_pylist())
            except (ArrowException, ValueError) as error:
                raise UserError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
        case ".csv":
            return list(_csv(path))
    raise UserError(f"{path}: unknown kind of data file; use .jsonl, .json, .parquet or .csv")


def _json(text: bytes, where: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON value")

    try:
        value = json.loads(text, parse_constant=refuse)
        if b"\\ud" in text.lower():  # an escape that may be half of a character, which is no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UserError(f"{where}: {half!r} is half of a surrogate pair, and no character") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not valid UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    import csv

    with path.open(newline="", encoding="utf-8-sig") as stream:
        try:
            for number, row in enumerate(csv.DictReader(stream, strict=True)):
                if None in row or None in row.values():
                    count = "more" if None in row else "fewer"
                    raise UserError(f"{path}, row {number}: it has {count} cells than the header")
                yield row
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not valid UTF-8: {error.reason}") from None
        except csv.Error as error:
            raise UserError(f"{path}: not a CSV file: {error}") from None


def _hub(name: str) -> list[Any]:
    """Rows of ``hub:owner/name[:config]:split``."""
    parts = name.removeprefix(HUB).split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise UserError(f"{name}: expected hub:owner/name:split or hub:owner/name:config:split")
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError(name, "hub") from None
    try:
        return list(load_dataset(*parts[:-1], split=parts[-1]))
    except Exception as error:  # the hub, its cache and its formats fail in kinds of their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: the data set cannot be loaded from the hub ({reason})") from error


class FilesParams(EnvironmentParams):
    """The task, and its data files."""

    files: dict[Literal["train", "val", "test"], list[str]] = Field(
        {}, description="Data files by split; missing splits are cut from train."
    )


class FilesEnvironment(Environment):
    """A task whose prompts lie in data files."""

    Params = FilesParams
    licence = "that of the files"

    def load(self, file: str) -> list[Prompt]:
        """The prompts of one data file.

        Raises:
            UserError: if it cannot be read; the message names the file, the row and the field.
        """
        raise NotImplementedError

    def prompts(self) -> Splits:
        """Those of the files; one that occurs twice in a split counts once."""
        files = self.params.files
        if "train" not in files:
            raise UserError(
                f"environment.name={self.name} reads its prompts from data files; name them, "
                "e.g. --set 'environment.files={train: [problems.jsonl]}'"
            )
        read = {s: {p.prompt_id: p for file in names for p in self.load(file)} for s, names in files.items()}
        return cut(self.params, {split: list(prompts.values()) for split, prompts in read.items()})


def cut(params: EnvironmentParams, given: Splits) -> Splits:
    """At most `*_prompts` of each split, in the order of ids; splits that are not given are cut from train.

    Raises:
        UserError: if a split is left empty.
    """
    ordered = {split: sorted(prompts, key=lambda p: p.prompt_id) for split, prompts in given.items()}
    train = ordered.pop("train")
    splits: dict[str, list[Prompt]] = {}
    for split in ("test", "val"):
        size = getattr(params, f"{split}_prompts")
        if split in ordered:
            splits[split] = ordered[split][:size]
        else:
            splits[split], train = train[:size], train[size:]
    splits["train"] = train[: params.train_prompts]
    if empty := [split for split, prompts in splits.items() if not prompts]:
        raise UserError(
            f"no prompt is left for the split {empty[0]!r} of {sum(map(len, given.values()))}; lower "
            f"environment.val_prompts={params.val_prompts} and environment.test_prompts={params.test_prompts}"
        )
    return splits
