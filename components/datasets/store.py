"""Prompts on disk: one Parquet file per split, ids by content, and a card that says what they are.

A data set lies in a folder named by the hash of the settings that made it, so that runs with different settings never
share or overwrite one.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from components.config import EnvironmentParams
from components.datasets.multihop import generate_prompts
from components.environments.base import Prompt
from components.errors import UserError
from components.storage import atomic_path, content_hash, read_json, read_parquet, value_hash, write_json, write_parquet

PROMPT_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("prompt_id", "question", "answer", "metadata")]
)
SPLITS = ("train", "val", "test")
DATA_SEED = 20260610  # the data set is the same for every run seed


def prepare(settings: EnvironmentParams, root: Path) -> Path:
    """Writes the splits of a built-in task unless they are there already.

    Args:
        settings: Sizes and difficulty.
        root: Folder of all data sets.

    Returns:
        The folder with ``{train,val,test}.parquet`` and ``card.json``. No prompt is in two splits.
    """
    recipe = {"seed": DATA_SEED, **settings.model_dump(exclude={"max_turns"})}
    folder = root / settings.name / value_hash(recipe)[:12]
    if _is_whole(folder):
        return folder
    stream = generate_prompts(np.random.default_rng(DATA_SEED), settings.hops)
    seen: set[str] = set()
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for split in SPLITS:
            prompts: list[Prompt] = []
            while len(prompts) < getattr(settings, f"{split}_prompts"):
                prompt = next(stream)
                if prompt.prompt_id not in seen:
                    seen.add(prompt.prompt_id)
                    prompts.append(prompt)
            write_parquet(temporary / f"{split}.parquet", prompts_to_table(prompts))
        write_json(temporary / "card.json", {"task": settings.name, "source": "built-in generator", "settings": recipe,
                   "sha256": {split: content_hash(temporary / f"{split}.parquet") for split in SPLITS}})  # fmt: skip
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether the splits are those that the card names."""
    try:
        hashes = read_json(folder / "card.json")["sha256"]
        return all(content_hash(folder / f"{split}.parquet") == hashes[split] for split in SPLITS)
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
        UserError: if the file is missing or damaged, or holds an id twice.
    """
    rows = read_parquet(path, PROMPT_SCHEMA).to_pylist()
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if row["prompt_id"] in seen:
            raise UserError(f"{path}, row {number}: prompt_id {row['prompt_id']} occurs twice")
        seen.add(row["prompt_id"])
    return [Prompt(r["prompt_id"], r["question"], r["answer"], json.loads(r["metadata"])) for r in rows]
