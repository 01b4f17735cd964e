"""Any prompts as a data set: {train,val,test}.parquet and a card that says what they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components.datasets.store import SPLITS, prompts_to_table
from components.environments.base import Prompt
from components.errors import UserError
from components.storage import atomic_path, content_hash, value_hash, write_parquet, write_sealed


def write_splits(
    folder: Path,
    prompts: Sequence[Prompt] | Mapping[str, Sequence[Prompt]],
    sizes: Mapping[str, int | float] | None = None,
    card: Mapping[str, Any] | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> Path:
    """Writes the splits of a data set and their card, whole or not at all.

    Args:
        folder: Where they go; replaced if it is there.
        prompts: Given splits, written in their order (a missing one is written empty); or prompts to be split by
            `sizes`, in the order of their ids, so that the file's order does not matter.
        sizes: For prompts that are not split yet: numbers of prompts (int) or shares of all (float), by split. The last
            split named takes what rounding leaves of the shares; other prompts are left out.
        card: Facts for people: task, source, licence.
        count_tokens: Tokens of a text under the policy's tokenizer, for the card.

    Returns:
        The folder.

    Raises:
        UserError: if there are no prompts, two have one id (the message names both splits), a split is unknown, or the
            sizes ask for more than there is.
    """
    if isinstance(prompts, Mapping) and sizes:
        raise UserError(f"{folder}: sizes={dict(sizes)} are for prompts that are not split yet")
    given = prompts if isinstance(prompts, Mapping) else _cut(prompts, sizes or {"train": 0.8, "val": 0.1, "test": 0.1})
    if unknown := set(given) - set(SPLITS):
        raise UserError(f"{folder}: unknown split {sorted(unknown)[0]!r}; splits are {', '.join(SPLITS)}")
    splits = {split: list(given.get(split, [])) for split in SPLITS}
    _refuse_overlap(folder, splits)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for split, rows in splits.items():
            write_parquet(temporary / f"{split}.parquet", prompts_to_table(rows))
        hashes = {split: content_hash(temporary / f"{split}.parquet") for split in SPLITS}
        write_sealed(
            temporary / "card.json",
            {
                **(card or {}),
                "splits": {split: _describe(rows, count_tokens) for split, rows in splits.items()},
                "sha256": hashes,
                "data_hash": value_hash(hashes),
            },
        )
    return folder


def _cut(prompts: Sequence[Prompt], sizes: Mapping[str, int | float]) -> dict[str, list[Prompt]]:
    ordered = sorted(prompts, key=lambda prompt: prompt.prompt_id)
    is_share = [isinstance(size, float) for size in sizes.values()]
    if any(is_share) != all(is_share) or not sizes or min(sizes.values()) < 0:
        raise UserError(f"sizes={dict(sizes)}: give numbers of prompts (int) or shares (float), none negative")
    if all(is_share):
        if sum(sizes.values()) > 1 + 1e-9:
            raise UserError(f"sizes={dict(sizes)}: the shares add up to more than 1")
        bounds = np.round(np.cumsum(list(sizes.values())) * len(ordered)).astype(int).tolist()
    else:
        bounds = np.cumsum(list(sizes.values())).tolist()
    if bounds[-1] > len(ordered):
        raise UserError(f"sizes={dict(sizes)}: they ask for {bounds[-1]} prompts of {len(ordered)}")
    return {s: ordered[begin:end] for s, begin, end in zip(sizes, [0, *bounds], bounds, strict=False)}


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


def _describe(prompts: Sequence[Prompt], count_tokens: Callable[[str], int] | None) -> dict[str, Any]:
    described: dict[str, Any] = {"prompts": len(prompts)}
    for name in ("question", "answer"):
        texts = [str(getattr(prompt, name)) for prompt in prompts]
        described[f"{name}_characters"] = _spread([len(text) for text in texts])
        if count_tokens:
            described[f"{name}_tokens"] = _spread([count_tokens(text) for text in texts])
    return described


def _spread(values: list[int]) -> dict[str, float] | None:
    if not values:
        return None
    return {"least": min(values), "median": float(np.median(values)), "most": max(values)}
