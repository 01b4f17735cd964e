"""What a trainer is: who learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from components.errors import MissingExtraError
from components.params.base import Float, Fraction, Positive, PositiveInt, Section
from components.registry import Plugin, can_import

if TYPE_CHECKING:
    from components.tree.forest import Forest


class LoraParams(Section):
    """Low-rank adapters: with a rank, only they are trained."""

    rank: PositiveInt = Field(16, description="Rank of the adapters.")
    alpha: Positive = Field(32.0, description="What they add is scaled by alpha / rank.")
    targets: list[str] = Field(["all-linear"], min_length=1, description="Modules that get one, or all-linear.")

    @model_validator(mode="after")
    def _check(self) -> LoraParams:
        if "all-linear" in self.targets and len(self.targets) > 1:
            raise ValueError(f"targets={self.targets}: all-linear stands alone")
        return self


class UpdateParams(Section):
    """Who learns, and from which advantages."""

    name: str = Field("", description="Registered trainer.")
    advantage: str = Field("treerpo", description="Registered advantage; treerpo is the paper's for math and QA.")
    learning_rate: Annotated[Float, Field(gt=0, le=100)] = Field(4e-4, description="Learning rate of Adam.")
    clip_low: Fraction = Field(0.2, description="The importance ratio is clipped at 1 - clip_low.")
    clip_high: Positive = Field(0.28, description="The importance ratio is clipped at 1 + clip_high.")
    max_grad_norm: Positive = Field(1.0, description="Gradients are scaled down to this norm.")
    epochs: PositiveInt = Field(2, description="Passes over the forest.")
    minibatches: PositiveInt = Field(4, description="Optimiser steps per pass; whole trees stay together.")
    packing: Literal["auto", "tree", "flat"] = Field(
        "auto", description="Shared prefixes computed once (tree), or row by row (flat); auto checks tree once."
    )
    micro_batch_tokens: PositiveInt = Field(
        16384, description="Tokens in one forward pass: unique ones of packed trees, padded ones of flat rows."
    )
    max_path_tokens: PositiveInt | None = Field(
        None, description="Longest path that may be trained; must hold engine.max_tokens. null: no limit."
    )
    importance_cap: Annotated[Float, Field(ge=1)] | None = Field(
        None, description="Cap on the weights trainer/engine of tokens; null: the ratio starts from the engine's own."
    )
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="What layers compute in; weights are kept in fp32.")
    gradient_checkpointing: bool = Field(False, description="Compute layers again in the backward pass: less memory.")
    lora: LoraParams | None = Field(None, description="Low-rank adapters; null trains all weights.")


@dataclass(frozen=True)
class Update:
    """What a policy step reports.

    Attributes:
        metrics: Flat name to number.
        advantage_N: Mean advantage that each node's action tokens carried, NaN where none did.
    """

    metrics: dict[str, float]
    advantage_N: list[float]


@dataclass(frozen=True)
class TrainerLayout:
    """How a trainer lies on its devices, for `trace plan`; by default in the run's own process, on the CPU.

    Attributes:
        on_gpu: Whether it computes on GPUs.
        processes: One per device.
        zero_stage: What they part among them: 1 moments, 2 gradients too, 3 weights too (arXiv 1910.02054).
        offload: Whether moments and fp32 weights lie in the host's memory.
        keys: What to change, by the part of the memory that is too large.
    """

    on_gpu: bool = False
    processes: int = 1
    zero_stage: int = 0
    offload: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)


class Trainer(Plugin):
    """Learns from a forest.

    Args:
        params: Its section of the parameters.
        temperature: The engine's sampling temperature: scored log-probabilities belong to the sampled distribution.
        threads: CPU threads of a process.
    """

    Params: ClassVar[type[UpdateParams]] = UpdateParams

    @classmethod
    def make(cls, params: Any, temperature: float, threads: int) -> Trainer:
        """The trainer, with the model libraries."""
        return cls(params, temperature, threads)  # type: ignore[call-arg]

    @classmethod
    def layout(cls, params: Any) -> TrainerLayout:
        """Where it learns, from its section of the parameters."""
        return TrainerLayout()

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        if params.update.lora is not None and not can_import("peft"):
            raise MissingExtraError("update.lora", "lora")

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        """Reads a checkpoint from `policy`, takes the step, writes the next checkpoint to `target`.

        `fresh` leaves the optimiser state in `policy` unread: it belongs to another run.

        Raises:
            FloatingPointError: if a loss, a gradient or a weight is not finite; nothing is written then.
        """
        raise NotImplementedError
