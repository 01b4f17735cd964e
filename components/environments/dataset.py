"""Data sets on disk: one Parquet file a split, ids by content, and a card that says what they are.

A data set lies in a folder named by the hash of the settings that made it, so that runs with different settings never
share or overwrite one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components.environments.base import Environment, Prompt, Splits
from components.environments.generated import SEED
from components.errors import UserError
from components.params.base import NOT_DATA, texts
from components.storage import (
    atomic_path,
    content_hash,
    read_parquet,
    read_sealed,
    value_hash,
    write_parquet,
    write_sealed,
)

logger = logging.getLogger("trace")

PROMPT_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("prompt_id", "question", "answer", "metadata")]
)
KEPT = 16_384  # prompts kept as objects: more than the trees of an iteration and of the earlier ones of a refit
SPLITS = ("train", "val", "test")


def prepare(environment: Environment, root: Path) -> Path:
    """Writes the splits of a task unless they are there already.

    Args:
        environment: The task. All its parameters but those marked `NOT_DATA` decide which data set it is, and so do the
            contents of every file that they name.
        root: Folder of all data sets.

    Returns:
        The folder with ``{train,val,test}.parquet`` and ``card.json``. No prompt is in two splits.

    Raises:
        UserError: if a data file is missing or damaged, or there are too few prompts.
    """
    params = environment.params
    settings = params.model_dump(mode="json", exclude={*params.marked(NOT_DATA), "name"})
    contents = {file: content_hash(Path(file)) for file in texts(settings) if os.path.isfile(file)}
    recipe = {"seed": SEED, "name": environment.name, **settings, "contents": contents}
    folder = root / environment.name / value_hash(recipe)[:12]
    if folder.exists():
        if _is_whole(folder, recipe):
            return folder
        logger.warning("%s is damaged; the data set is made anew", folder)
    card = {"task": environment.name, "source": environment.source(), "licence": environment.licence}
    return write_splits(folder, environment.prompts(), card | {"settings": recipe})


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


def write_splits(folder: Path, prompts: Splits, card: Mapping[str, Any] | None = None) -> Path:
    """Writes the splits of a data set and their card, whole or not at all.

    Args:
        folder: Where they go; replaced if it is there.
        prompts: By split, written in their order; a missing split is written empty.
        card: Facts for people: task, source, licence.

    Returns:
        The folder.

    Raises:
        UserError: if there are no prompts, two have one id (the message names both splits), two splits hold the same
            question in the same world, or a split is unknown.
    """
    if unknown := set(prompts) - set(SPLITS):
        raise UserError(f"{folder}: unknown split {sorted(unknown)[0]!r}; splits are {', '.join(SPLITS)}")
    splits = {split: list(prompts.get(split, [])) for split in SPLITS}
    _refuse_overlap(folder, splits)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for split, rows in splits.items():
            write_parquet(temporary / f"{split}.parquet", prompts_to_table(rows))
        hashes = {split: content_hash(temporary / f"{split}.parquet") for split in SPLITS}
        facts = {"splits": {split: _describe(rows) for split, rows in splits.items()}, "sha256": hashes}
        write_sealed(temporary / "card.json", {**(card or {}), **facts, "data_hash": value_hash(hashes)})
    return folder


def _refuse_overlap(folder: Path, splits: Mapping[str, Sequence[Prompt]]) -> None:
    home: dict[str, str] = {}
    task: dict[str, str] = {}  # the same question in the same world, whatever its answer
    for split, rows in splits.items():
        for prompt in rows:
            if prompt.prompt_id in home:
                where = f"{home[prompt.prompt_id]} and {split}" if home[prompt.prompt_id] != split else f"{split} twice"
                raise UserError(f"{folder}: prompt {prompt.prompt_id} ({prompt.question[:80]!r}) is in {where}")
            home[prompt.prompt_id] = split
            world = {key: value for key, value in prompt.metadata.items() if key != "aliases"}
            key = f"{' '.join(prompt.question.lower().split())}\0{json.dumps(world, sort_keys=True)}"
            if task.setdefault(key, split) != split:
                raise UserError(f"{folder}: the question {prompt.question[:80]!r} is in {task[key]} and {split}")
    if not home:
        raise UserError(f"{folder}: no prompts to write")


def _describe(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """How many there are, and how long their texts are."""
    described: dict[str, Any] = {"prompts": len(prompts)}
    for name in ("question", "answer"):
        sizes = [len(getattr(prompt, name)) for prompt in prompts]
        spread = {"least": min(sizes), "median": float(np.median(sizes)), "most": max(sizes)} if sizes else None
        described[f"{name}_characters"] = spread
    return described
