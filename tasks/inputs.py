"""What several tasks read: prompts, forests, and what follows from them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from components.config import Params
from components.datasets import load_prompts, prepare
from components.environments import Prompt
from components.errors import UserError
from components.storage import read_parquet, write_parquet
from components.tree.forest import Forest
from components.tree.schema import NODE_SCHEMA


def prompts(params: Params, split: str) -> dict[str, Prompt]:
    """The prompts of a split by id, in the file's order."""
    return _prompts(prepare(params.environment, Path(params.run.data_dir)) / f"{split}.parquet")


@lru_cache(maxsize=4)
def _prompts(path: Path) -> dict[str, Prompt]:
    return {p.prompt_id: p for p in load_prompts(path)}


def read_forest(path: Path) -> Forest:
    """Reads a forest.

    Raises:
        UserError: if the file is missing or damaged, or its rows are no trees.
    """
    table = read_parquet(path, NODE_SCHEMA)
    try:
        return Forest.from_table(table)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} holds no forest: {error}") from error


def write_forest(path: Path, forest: Forest) -> None:
    write_parquet(path, forest.to_table())
