"""Prompts on disk: one Parquet file per split, ids by content, and a card that says what they are.

A data set lies in a folder named by the hash of the settings that made it, so that runs with different settings never
share or overwrite one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.config import EnvironmentParams
from components.environments.base import Prompt
from components.errors import UserError
from components.storage import content_hash, read_parquet, read_sealed, value_hash

logger = logging.getLogger("trace")

PROMPT_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("prompt_id", "question", "answer", "metadata")]
)
KEPT = 16_384  # prompts that are not made anew: more than the trees of an iteration and of the earlier ones of a refit
SPLITS = ("train", "val", "test")
DATA_KEYS = {"name", "train_prompts", "val_prompts", "test_prompts"}  # and those of the task, below
TASK_KEYS = {"search": {"files"}, "math": {"files"}, "functions": {"categories"}}


def prepare(settings: EnvironmentParams, root: Path) -> Path:
    """Writes the splits of a task unless they are there already.

    Args:
        settings: Sizes, difficulty, files.
        root: Folder of all data sets.

    Returns:
        The folder with ``{train,val,test}.parquet`` and ``card.json``. No prompt is in two splits.

    Raises:
        UserError: if a data file is missing or damaged, or there are too few prompts.
    """
    from components.datasets.sources import SEED, SOURCES  # they use the schema above
    from components.datasets.splits import write_splits

    recipe = {"seed": SEED, **settings.model_dump(include=DATA_KEYS | TASK_KEYS.get(settings.name, {"hops"}))}
    files = [file for names in recipe.get("files", {}).values() for file in names]
    recipe["contents"] = {file: content_hash(Path(file)) for file in files if Path(file).exists()}
    folder = root / settings.name / value_hash(recipe)[:12]
    if folder.exists():
        if _is_whole(folder, recipe):
            return folder
        logger.warning("%s is damaged; the data set is made anew", folder)
    source = ", ".join(files) or ("the package bfcl-eval" if settings.name == "functions" else "built-in generator")
    card = {"task": settings.name, "source": source, "licence": LICENCES.get(settings.name), "settings": recipe}
    return write_splits(folder, SOURCES[settings.name](settings), card=card)


LICENCES = {"functions": "Apache-2.0 (bfcl-eval)", "search": "that of the files", "math": "that of the files"}


def _is_whole(folder: Path, recipe: dict[str, Any]) -> bool:
    """Whether the card is of this recipe, and the splits are those that it names."""
    try:
        card = read_sealed(folder / "card.json")
        hashes = card["sha256"]
        return value_hash(card["settings"]) == value_hash(recipe) and all(
            content_hash(folder / f"{split}.parquet") == hashes[split] for split in SPLITS
        )
    except (UserError, OSError, KeyError, TypeError):
        return False


def prompts_to_table(prompts: list[Prompt]) -> pa.Table:
    columns = [
        [p.prompt_id for p in prompts],
        [p.question for p in prompts],
        [p.answer for p in prompts],
        [json.dumps(p.metadata) for p in prompts],
    ]
    return pa.table(columns, schema=PROMPT_SCHEMA)


class Prompts(Mapping[str, Prompt]):
    """The prompts of a split by id, in the file's order: a table in memory, of which a row becomes a prompt when asked.

    So a pool of a million takes a tenth of the memory that its objects would take.

    Raises:
        UserError: if the file is missing or damaged, or holds an id twice; when a prompt is asked for, if its metadata
            are no JSON object.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._table = path, read_parquet(path, PROMPT_SCHEMA).combine_chunks()
        ids = self._table["prompt_id"].to_pylist()
        self._rows = dict(zip(ids, range(len(ids)), strict=True))
        if len(self._rows) < len(ids):
            again = next(prompt_id for row, prompt_id in enumerate(ids) if self._rows[prompt_id] != row)
            raise UserError(f"{path}, row {self._rows[again]}: prompt_id {again} occurs twice")
        self._made = lru_cache(maxsize=KEPT)(self._make)

    def __getitem__(self, prompt_id: str) -> Prompt:
        return self._made(self._rows[prompt_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _make(self, row: int) -> Prompt:
        prompt_id, question, answer, text = (column[row].as_py() for column in self._table.columns)
        try:
            metadata = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self._path}, row {row}: field 'metadata' is not valid JSON: {error}") from None
        if not isinstance(metadata, dict):
            raise UserError(f"{self._path}, row {row}: field 'metadata' should be an object, found {metadata!r:.40}")
        return Prompt(prompt_id, question, answer, metadata)


def load_prompts(path: Path) -> list[Prompt]:
    """All prompts of a split. Raises `UserError` as `Prompts` does."""
    return list(Prompts(path).values())
