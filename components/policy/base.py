"""What an engine is (who samples) and what a trainer is (who learns)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from components.tree.forest import Forest


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


class Engine(Protocol):
    """Samples turns: token ids in, token ids and log-probabilities of the sampled distribution out.

    Attributes:
        batch_size: Sequences that are best sampled together.
        prompt_tokens: Tokens of the histories of all requests since the last `load`.
        cached_tokens: Those of them whose keys and values were there, and not computed again.
    """

    batch_size: int
    prompt_tokens: int
    cached_tokens: int

    def load(self, policy: Path) -> None:
        """Takes the weights of a checkpoint, and drops every cache that belongs to others."""

    def generate(self, requests: list[Request]) -> list[Completion]:
        """One completion per request, in their order."""


@runtime_checkable
class AsyncEngine(Engine, Protocol):
    """An engine that samples many single requests at once: no rollout waits for another one's turn."""

    async def sample(self, request: Request) -> Completion:
        """One completion; called in the event loop of `components.policy.loop`, for many requests at once."""


@dataclass(frozen=True)
class Update:
    """What a policy step reports.

    Attributes:
        metrics: Flat name to number.
        advantage_N: Mean advantage that each node's action tokens carried, NaN where none did.
    """

    metrics: dict[str, float]
    advantage_N: list[float]


class Trainer(Protocol):
    """Learns from a forest."""

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        """Reads a checkpoint from `policy`, takes the step, writes the next checkpoint to `target`.

        `fresh` leaves the optimiser state in `policy` unread: it belongs to another run.
        """
