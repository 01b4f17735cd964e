"""`oracle`: V by Monte Carlo, for tests and for ceilings. It samples far more than it saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from components.allocation.anchors import Belief
from components.environments.verify import verify
from components.params.base import PositiveInt
from components.predictor.base import MakeSampler, Predictor, PredictorParams, Prefix
from components.seeds import derive_seed
from components.tree.anchors import SUCCESS
from components.tree.schema import Status

if TYPE_CHECKING:
    from components.policy.rollout import Sampler


class OracleParams(PredictorParams):
    """Who estimates the chance of success: rollouts from every prefix."""

    rollouts: PositiveInt = Field(16, description="Rollouts per prefix.")


class Oracle(Predictor):
    """Rollouts of the policy from every prefix: for tests and ceilings, it samples more than it saves.

    The belief is Beta(1/2, 1/2) and the counts of what they show; a success is a reward above `SUCCESS`.

    Args:
        sampler: Holds the policy whose V is asked for.
        rollouts: Number for each prefix.
        seed: Of the sampling; the training rollouts use other seeds.
    """

    name = "oracle"
    Params: ClassVar[type[PredictorParams]] = OracleParams

    @classmethod
    def make(cls, params: OracleParams, policy: Path, sampler: MakeSampler, seed: int) -> Predictor:
        return cls(sampler(), params.rollouts, seed)

    def __init__(self, sampler: Sampler, rollouts: int, seed: int) -> None:
        self.sampler, self.rollouts, self.seed = sampler, rollouts, seed

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        from components.policy.rollout import Start

        starts = []
        for row, prefix in enumerate(prefixes):
            world = self.sampler.world(prefix.prompt, prefix.actions)
            for sibling in range(self.rollouts):
                seed = derive_seed("oracle", self.seed, prefix.prompt.prompt_id, *prefix.actions, sibling)
                starts.append(Start(prefix.prompt, 0, row, sibling, prefix.turn, prefix.token_ids, world, seed))
        total, trials = np.zeros(len(prefixes)), np.zeros(len(prefixes))
        for leaf in (node for node in self.sampler.sample(starts, len(prefixes)) if node.is_terminal):
            if leaf.status != Status.OK:
                continue
            reward = verify(self.sampler.environment, prefixes[leaf.anchor_id].prompt, leaf.answer).reward
            if reward is not None:
                total[leaf.anchor_id] += reward > SUCCESS
                trials[leaf.anchor_id] += 1
        return Belief((total + 0.5) / (trials + 1.0), trials + 1.0)

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        return {}

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "oracle").touch()  # nothing to keep; the folder says that there was a fit

    def load(self, path: Path) -> None:
        pass
