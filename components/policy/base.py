"""Where the policy comes from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

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
