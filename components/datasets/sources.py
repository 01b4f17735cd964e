"""Where the prompts of each task come from: a generator, data files, or a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from components.config import EnvironmentParams
from components.datasets.builtin import BUILTIN
from components.environments.base import Prompt
from components.errors import UserError

SEED = 20260610  # a data set is the same for every run seed

Splits = Mapping[str, Sequence[Prompt]]


def generated(settings: EnvironmentParams) -> Splits:
    """Prompts of a built-in task, all different, exactly as many as `*_prompts` say."""
    stream = BUILTIN[settings.name].generate(np.random.default_rng(SEED), settings.hops, None)
    seen: set[str] = set()
    splits: dict[str, list[Prompt]] = {"train": [], "val": [], "test": []}
    for split, prompts in splits.items():
        while len(prompts) < getattr(settings, f"{split}_prompts"):
            prompt = next(stream)
            if prompt.prompt_id not in seen:
                seen.add(prompt.prompt_id)
                prompts.append(prompt)
    return splits


def search(settings: EnvironmentParams) -> Splits:
    """Questions of `environment.files`."""
    from components.datasets.qa import load_qa

    return _from_files(settings, partial(load_qa, duplicates="drop"))


def math(settings: EnvironmentParams) -> Splits:
    """Problems of `environment.files`; a file named ``reasoning-gym`` stands for generated ones."""
    from components.datasets.math import generate_reasoning, load_math

    def load(file: str) -> list[Prompt]:
        if file == "reasoning-gym":
            wanted = sum(getattr(settings, f"{split}_prompts") for split in ("train", "val", "test"))
            return generate_reasoning(SEED, wanted)
        return load_math(file, conflicts="drop")

    return _from_files(settings, load)


def functions(settings: EnvironmentParams) -> Splits:
    """Function-calling prompts of `environment.categories`, 80 to 20; the validation prompts are cut from the 80."""
    from components.datasets.functions import load_bfcl, split_bfcl

    return _cap(settings, split_bfcl(load_bfcl(settings.categories)))


# By the name of the environment.
SOURCES: dict[str, Callable[[EnvironmentParams], Splits]] = {
    **dict.fromkeys(BUILTIN, generated),
    "search": search,
    "math": math,
    "functions": functions,
}


def _from_files(settings: EnvironmentParams, load: Callable[[str], list[Prompt]]) -> Splits:
    if "train" not in settings.files:
        raise UserError(
            f"environment.name={settings.name} reads its prompts from data files; name them, "
            "e.g. --set 'environment.files={train: [problems.jsonl]}'"
        )
    loaded = {split: [p for file in files for p in load(file)] for split, files in settings.files.items()}
    return _cap(settings, {split: list({p.prompt_id: p for p in each}.values()) for split, each in loaded.items()})


def _cap(settings: EnvironmentParams, given: Splits) -> Splits:
    """At most `*_prompts` of each split, in the order of ids; splits that are not given are cut from train."""
    ordered = {split: sorted(prompts, key=lambda p: p.prompt_id) for split, prompts in given.items()}
    train = ordered.pop("train")
    splits: dict[str, list[Prompt]] = {}
    for split in ("test", "val"):
        size = getattr(settings, f"{split}_prompts")
        if split in ordered:
            splits[split] = ordered[split][:size]
        else:
            splits[split], train = train[:size], train[size:]
    splits["train"] = train[: settings.train_prompts]
    if not splits["train"]:
        raise UserError(
            f"environment.val_prompts={settings.val_prompts} and environment.test_prompts={settings.test_prompts} "
            f"leave no training prompt of {sum(map(len, given.values()))}"
        )
    return splits
