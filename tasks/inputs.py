"""What several tasks read: prompts, forests, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from components.config import Params
from components.datasets import Prompts, prepare
from components.environments import Prompt
from components.errors import UserError
from components.storage import content_hash, read_parquet, write_parquet
from components.tree.forest import Forest
from components.tree.schema import NODE_SCHEMA


def prompts(params: Params, split: str) -> Mapping[str, Prompt]:
    """The prompts of a split by id, in the file's order."""
    return _prompts(prepare(params.environment, Path(params.run.data_dir)) / f"{split}.parquet")


@lru_cache(maxsize=4)
def _prompts(path: Path) -> Prompts:
    return Prompts(path)


def read_forest(path: Path) -> Forest:
    """A forest that the caller may change.

    Raises:
        UserError: if the file is missing or damaged, or its rows are no trees.
    """
    table = read_parquet(path, NODE_SCHEMA)
    try:
        return Forest.from_table(table)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} holds no forest: {error}") from error


def shared_forest(path: Path) -> Forest:
    """A forest that nobody changes: kept, for several stages and the next refits read the same. Raises as above."""
    return _forest(path, content_hash(path)) if path.exists() else read_forest(path)


@lru_cache(maxsize=6)  # those of a refit by default: the iteration's, before and after its update, and four earlier
def _forest(path: Path, content: str) -> Forest:
    return read_forest(path)


def write_forest(path: Path, forest: Forest) -> None:
    write_parquet(path, forest.to_table())
