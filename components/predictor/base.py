"""What a predictor is: one model of the chance of success, shared by roots and prefixes, used by the allocator only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log1p
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from components.allocation.anchors import Belief
from components.environments.base import Prompt
from components.errors import UserError
from components.params.base import Count, Float, NonNegative, Positive, PositiveInt, Section, Width
from components.registry import Plugin
from components.tree.forest import Forest
from components.tree.values import own_rollouts

if TYPE_CHECKING:
    from components.planning.models import Model
    from components.policy.base import PolicyParams
    from components.policy.rollout import Sampler

MakeSampler = Callable[[], "Sampler"]  # of the policy that samples in the iteration, for a predictor that samples


@dataclass(frozen=True)
class Prefix:
    """A history at a turn boundary, as it was sampled.

    Attributes:
        prompt: The task instance.
        token_ids: Everything the policy saw and sampled so far.
        is_action: Marks the sampled tokens.
        logprobs: Of the sampled tokens under the policy that sampled them; NaN elsewhere.
        actions: Text of each turn of the policy so far; empty at a root.
    """

    prompt: Prompt
    token_ids: list[int]
    is_action: list[bool]
    logprobs: list[float]
    actions: tuple[str, ...] = ()

    @property
    def turn(self) -> int:
        """Turns taken; 0 at a root."""
        return len(self.actions)

    @cached_property
    def spelled(self) -> bytes:
        """The token ids as int64, 8 bytes each: equal histories spell alike, and a beginning begins the spelling."""
        return np.array(self.token_ids, dtype=np.int64).tobytes()

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens before the first sampled one."""
        return self.is_action.index(True) if True in self.is_action else len(self.token_ids)

    @cached_property
    def hesitation(self) -> tuple[float, ...]:
        """Sum, mean and least of the sampled tokens' log-probabilities; lengths of what was sampled and of all."""
        sampled = [p for p, acted in zip(self.logprobs, self.is_action, strict=True) if acted]
        total = sum(sampled)
        mean, least = total / max(len(sampled), 1), min(sampled, default=0.0)
        return log1p(max(-total, 0.0)), mean, least, log1p(len(sampled)), log1p(len(self.token_ids))

    @classmethod
    def root(cls, prompt: Prompt, token_ids: list[int]) -> Prefix:
        return cls(prompt, token_ids, [False] * len(token_ids), [float("nan")] * len(token_ids))


class PredictorParams(Section):
    """Who estimates the chance of success."""

    name: str = Field("", description="Registered predictor.")
    replay: Count = Field(4, description="Earlier iterations whose labels are used again.")


class FitParams(PredictorParams):
    """Who estimates the chance of success: a network that is fitted after each iteration."""

    hidden: Width = Field(32, description="Hidden units.")
    steps: PositiveInt = Field(60, description="Optimiser steps of one refit.")
    batch_size: PositiveInt = Field(256, description="Prefixes per optimiser step.")
    learning_rate: Positive = Field(3e-3, description="Learning rate of AdamW.")
    weight_decay: NonNegative = Field(0.3, description="Weight decay of AdamW.")
    root_weight: Annotated[Float, Field(gt=0, le=1e6)] = Field(
        3.0, description="Weight of a rollout's label at a root; 1 at a prefix."
    )


@dataclass(frozen=True)
class PredictorLayout:
    """What a predictor computes with, for `trace plan`; by default nothing that counts.

    Attributes:
        units_on_policy: Hidden units that read the policy's hidden states at a prefix; 0: it does not look at them.
        own: Shape of a model that it trains as a whole; None: it has none.
        steps, batch: Optimiser steps of that model in a refit, and prefixes in each.
    """

    units_on_policy: int = 0
    own: Model | None = None
    steps: int = 0
    batch: int = 0


class Predictor(Plugin):
    """Estimates V at prefixes."""

    Params: ClassVar[type[PredictorParams]] = PredictorParams

    @classmethod
    def make(cls, params: Any, policy: Path, sampler: MakeSampler, seed: int) -> Predictor:
        """The predictor of the run's seed, given its section of the parameters and the checkpoint that samples now."""
        return cls(params, policy)  # type: ignore[call-arg]

    @classmethod
    def layout(cls, params: Any, policy: PolicyParams) -> PredictorLayout:
        """What it computes with, from its section of the parameters and the policy's."""
        return PredictorLayout()

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        """What is believed of V at each prefix, in the order given."""
        raise NotImplementedError

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        """Learns from successes among so many scored rollouts, both (A,); returns metrics of the fit.

        The first `new` prefixes are those of the newest iteration; the others were there in earlier fits.
        """
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Writes the state to a folder."""
        raise NotImplementedError

    def load(self, path: Path) -> None:
        """Reads the state from a folder; raises `UserError` if it is missing or damaged."""
        raise NotImplementedError


def believe(predictor: Predictor, prefixes: Sequence[Prefix]) -> Belief:
    """What the predictor believes of V at each prefix.

    Raises:
        UserError: if it gives no belief (a NaN, a chance outside [0, 1]), or not one for each prefix.
    """
    name = type(predictor).__name__
    try:
        belief = predictor.predict(prefixes)
    except ValueError as error:
        raise UserError(f"the predictor {name} gives no belief: {error}") from error
    if not isinstance(belief, Belief) or len(belief) != len(prefixes):
        given = f"{len(belief)} beliefs" if isinstance(belief, Belief) else f"a {type(belief).__name__}"
        raise UserError(f"the predictor {name} gives {given} for {len(prefixes)} prefixes")
    return belief


def prefixes_of(forest: Forest, rows: Sequence[int], prompts: Mapping[str, Prompt]) -> list[Prefix]:
    """The histories that end at the given nodes of a forest."""
    prefixes = []
    for row in rows:
        nodes = [forest.nodes[step] for step in forest.path(row)]
        prefixes.append(
            Prefix(
                prompts[nodes[0].prompt_id],
                [token for node in nodes for token in node.token_ids],
                [acted for node in nodes for acted in node.is_action],
                [logprob for node in nodes for logprob in node.logprobs],
                tuple(node.action or "" for node in nodes[1:]),
            )
        )
    return prefixes


def labels_of(forest: Forest, prompts: Mapping[str, Prompt]) -> tuple[list[Prefix], np.ndarray, np.ndarray]:
    """What a predictor learns from a forest: its visited histories, and the rollouts that are fresh samples there.

    Returns:
        The histories of the roots and inner nodes with such a rollout, and their successes and trials (`own_rollouts`).
    """
    sum_N, count_N = own_rollouts(forest)
    rows = np.flatnonzero(~forest.is_terminal_N & (count_N > 0))
    return prefixes_of(forest, rows.tolist(), prompts), sum_N[rows], count_N[rows]
