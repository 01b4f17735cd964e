"""What several tasks read: prompts and forests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from components.build import environment_of
from components.environments.base import Prompt
from components.environments.dataset import Prompts, prepare
from components.errors import UserError
from components.params.root import Params
from components.storage import content_hash, read_parquet, write_parquet
from components.tree.forest import Forest
from components.tree.schema import NODE_SCHEMA


def prompts(params: Params, split: str) -> Mapping[str, Prompt]:
    """The prompts of a split by id, in the file's order."""
    return _prompts(data_folder(params) / f"{split}.parquet")


def data_folder(params: Params) -> Path:
    """Folder of the run's data set, which is written if it is not there."""
    root = Path(params.run.data_dir)
    return prepare(environment_of(params.environment, (root / "cache").absolute()), root)


@lru_cache(maxsize=4)
def _prompts(path: Path) -> Prompts:
    return Prompts(path)


def read_forest(path: Path) -> Forest:
    """A forest that the caller may change.

    Raises:
        UserError: if the file is missing or damaged, or its rows do not form trees.
    """
    table = read_parquet(path, NODE_SCHEMA)
    try:
        return Forest.from_table(table)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} holds no forest: {error}") from error


def shared_forest(path: Path) -> Forest:
    """A forest that nobody may change: cached, as several stages and later refits read it. Raises as `read_forest`."""
    return _forest(path, content_hash(path)) if path.exists() else read_forest(path)


@lru_cache(maxsize=6)  # what a refit reads by default: the iteration's, before and after its update, and four earlier
def _forest(path: Path, content: str) -> Forest:
    return read_forest(path)


def write_forest(path: Path, forest: Forest) -> None:
    write_parquet(path, forest.to_table())
