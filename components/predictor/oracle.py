"""`oracle`: V by Monte Carlo, for tests and for ceilings. It samples far more than it saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from components.allocation.base import Belief
from components.policy.rollout import Sampler, Start, derive_seed
from components.predictor.base import Prefix
from components.tree.anchors import SUCCESS
from components.tree.schema import Status, StopReason
from components.verifiers.base import Verifier, verify


class Oracle:
    """Samples rollouts from every prefix and believes what they show: Beta(1/2, 1/2) and their counts.

    As everywhere in the allocation, a success is a reward above `SUCCESS`.

    Args:
        sampler: Holds the policy whose V is asked for.
        verifier: Scores the rollouts.
        rollouts: Number for each prefix.
        seed: Of the sampling; the training rollouts use other seeds.
    """

    def __init__(self, sampler: Sampler, verifier: Verifier, rollouts: int, seed: int) -> None:
        self.sampler, self.verifier, self.rollouts, self.seed = sampler, verifier, rollouts, seed

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        starts = [
            Start(
                prefix.prompt,
                0,
                row,
                sibling,
                prefix.turn,
                prefix.token_ids,
                self.sampler.world(prefix.prompt, prefix.actions),
                derive_seed("oracle", self.seed, prefix.prompt.prompt_id, *prefix.actions, sibling),
            )
            for row, prefix in enumerate(prefixes)
            for sibling in range(self.rollouts)
        ]
        total, trials = np.zeros(len(prefixes)), np.zeros(len(prefixes))
        for leaf in (node for node in self.sampler.sample(starts, len(prefixes)) if node.is_terminal):
            if leaf.status != Status.OK:
                continue
            answer = leaf.observation if leaf.stop_reason == StopReason.ANSWERED else None
            reward = verify(self.verifier, prefixes[leaf.anchor_id].prompt, answer).reward
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
