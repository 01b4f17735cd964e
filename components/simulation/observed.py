"""What a run's forests say about its population."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from components.storage import read_parquet
from components.tree.forest import Forest


def observed(forests: Iterable[Path]) -> tuple[np.ndarray, np.ndarray, int]:
    """Successes and scored factual rollouts of every tree in some forest files, and the mean number of turns, rounded.

    Raises:
        UserError: if a file is damaged.
    """
    successes, rollouts, turns = [], [], []
    for path in forests:
        forest = Forest.from_table(read_parquet(path))
        leaf_L = forest.scored_L[~forest.is_counterfactual_N[forest.scored_L]]
        _, tree_L = np.unique(forest.tree_N[leaf_L], return_inverse=True)
        successes.append(np.bincount(tree_L, weights=forest.reward_N[leaf_L] > 0.5))
        rollouts.append(np.bincount(tree_L))
        turns.append(forest.turn_N[leaf_L])
    if not sum(map(len, turns)):
        return np.zeros(0), np.zeros(0), 1
    mean = float(np.concatenate(turns).mean())
    return np.concatenate(successes), np.concatenate(rollouts), max(1, round(mean))
