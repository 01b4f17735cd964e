"""Prompts on disk: one Parquet file per split, ids by content, and a card that says what they are.

A data set lies in a folder named by the hash of the settings that made it, so that runs with different settings never
share or overwrite one.
"""

from __future__ import annotations

import json
import logging
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
    rows = [
        {"prompt_id": p.prompt_id, "question": p.question, "answer": p.answer, "metadata": json.dumps(p.metadata)}
        for p in prompts
    ]
    return pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA)


def load_prompts(path: Path) -> list[Prompt]:
    """Reads a split.

    Raises:
        UserError: if the file is missing or damaged, holds an id twice, or metadata that are no JSON object.
    """
    rows = read_parquet(path, PROMPT_SCHEMA).to_pylist()
    seen: set[str] = set()
    prompts = []
    for number, row in enumerate(rows):
        if row["prompt_id"] in seen:
            raise UserError(f"{path}, row {number}: prompt_id {row['prompt_id']} occurs twice")
        seen.add(row["prompt_id"])
        try:
            metadata = json.loads(row["metadata"])
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, row {number}: field 'metadata' is not valid JSON: {error}") from None
        if not isinstance(metadata, dict):
            raise UserError(f"{path}, row {number}: field 'metadata' should be an object, found {metadata!r:.40}")
        prompts.append(Prompt(row["prompt_id"], row["question"], row["answer"], metadata))
    return prompts
