"""Where the policy comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from components.errors import UserError
from components.params.base import Count, Hops, NonNegative, Positive, PositiveInt, Section, Width


class WarmupParams(Section):
    """Supervised learning on generated demonstrations; the result is cached by content."""

    steps: PositiveInt = Field(300, description="Optimiser steps.")
    batch_size: PositiveInt = Field(64, description="Demonstrations per step.")
    learning_rate: Positive = Field(4e-3, description="Peak learning rate of AdamW.")
    zipf: NonNegative = Field(2.0, description="Skill words are demonstrated with frequency 1/rank^zipf.")
    hops: Hops = Field({2: 0.75, 3: 0.17, 4: 0.08}, description="Share of demonstrations by number of steps.")
    seed: Count = Field(0, description="Seed of the initial weights and the demonstrations.")


class PolicyParams(Section):
    """Where the policy comes from: a checkpoint, or a tiny Qwen3 built and warmed up here."""

    path: str | None = Field(None, description="Folder with a Hugging Face checkpoint; null builds the tiny policy.")
    layers: Width = Field(2, description="Layers of the tiny policy.")
    hidden: Annotated[Width, Field(multiple_of=8)] = Field(64, description="Hidden size of the tiny policy.")
    warmup: WarmupParams = WarmupParams()


# What makes the folders that the overlays in params/ name.
MADE_BY = {"models/SmolLM2-135M": "make smollm2"} | {
    f"models/{name}": f"hf download Qwen/{name} --local-dir models/{name}"
    for name in ("Qwen3-0.6B", "Qwen3-8B", "Qwen3-14B")
}


def check_checkpoint(path: str, key: str) -> None:
    """Raises `UserError` if there is no checkpoint at `path`, which is the value of `key`."""
    if not (Path(path) / "config.json").is_file():
        command = MADE_BY.get(Path(path).as_posix())
        advice = f"make it with: {command}" if command else "give a folder with a Hugging Face checkpoint"
        raise UserError(f"{key}={path!r}: no config.json there; {advice}")
