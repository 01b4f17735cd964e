"""What an engine is: who samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from components.params.base import MAY_CHANGE, Positive, PositiveInt, Section
from components.registry import Plugin


class EngineParams(Section):
    """Who samples. Training needs log-probabilities of the very distribution that was sampled from."""

    name: str = Field("", description="Registered engine.")
    batch_size: PositiveInt = Field(256, description="Sequences sampled together.")
    temperature: Positive = Field(1.0, description="Sampling temperature, applied in the trainer as well.")
    max_turn_tokens: Annotated[int, Field(gt=0, le=2**20)] = Field(24, description="Sampled tokens in one turn.")
    max_tokens: Annotated[int, Field(gt=0, le=2**22)] = Field(
        128, description="Tokens of a whole rollout, prompt and observations included."
    )
    shards: Annotated[PositiveInt, MAY_CHANGE] = Field(
        1, description="Parts of an iteration's prompts that are sampled, verified and expanded side by side."
    )


@dataclass(frozen=True)
class Request:
    """One turn to sample.

    Attributes:
        token_ids: The exact history.
        seed: Decides what is sampled, together with the history and the weights; independent of the batch.
        max_tokens: Tokens after which the turn is cut.
        tree: Its tree. Requests of one tree share prefixes, so an engine of several servers keeps them together.
    """

    token_ids: list[int]
    seed: int
    max_tokens: int
    tree: int = 0


@dataclass
class Completion:
    """A sampled turn: ids with the end-of-turn token where there is one, and their log-probabilities."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False  # the end-of-turn token was sampled; False: cut at max_tokens


@dataclass(frozen=True)
class EngineLayout:
    """How an engine lies on its devices, for `trace plan`; by default a model in the run's own process, on the CPU.

    Attributes:
        on_gpu: Whether it computes on GPUs.
        servers, tensor_parallel: Copies of the model, and devices of each.
        held_share: Of a GPU's memory, what a server keeps to itself for the whole run.
        number_bytes: Of a weight, of a key and of a value.
        cache_bytes: Most that keys and values of one call take. As much again is kept of earlier calls, and logits and
            activations stand beside them. None: the cache is paged, in what memory there is.
        keys: What to change, by the part of the memory that is too large.
    """

    on_gpu: bool = False
    servers: int = 1
    tensor_parallel: int = 1
    held_share: float = 0.0
    number_bytes: int = 4
    cache_bytes: float | None = inf
    keys: Mapping[str, str] = field(default_factory=dict)


class Engine(Plugin):
    """Samples turns: token ids in, token ids and log-probabilities of the sampled distribution out.

    Attributes:
        batch_size: Sequences that are best sampled together.
        prompt_tokens: Tokens of the histories of all requests since the last `load`.
        cached_tokens: Those of them whose keys and values were there, and not computed again.
    """

    Params: ClassVar[type[EngineParams]] = EngineParams
    batch_size: int
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def make(cls, params: Any) -> Engine:
        """The engine, from its section of the parameters."""
        return cls(params)  # type: ignore[call-arg]

    @classmethod
    def layout(cls, params: Any) -> EngineLayout:
        """Where it samples, from its section of the parameters."""
        return EngineLayout()

    def load(self, policy: Path) -> None:
        """Takes the weights of a checkpoint, and drops every cache that belongs to others."""
        raise NotImplementedError

    def generate(self, requests: list[Request]) -> list[Completion]:
        """One completion per request, in their order."""
        raise NotImplementedError


class AsyncEngine(Engine):
    """An engine that samples many single requests at once: no rollout waits for another one's turn."""

    async def sample(self, request: Request) -> Completion:
        """One completion; called in the event loop of `components.policy.loop`, for many requests at once."""
        raise NotImplementedError
