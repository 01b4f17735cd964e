"""Eq. 13 by dynamic programming, as the paper solves it: the oracle that the threshold planner is held against."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief
from components.allocation.utilities import root_utility


def plan_roots_dp(belief: Belief, budget: int, cap: int | None = None) -> np.ndarray:
    """Optimal counts under sum = budget, or under the largest feasible total below it; int64 (P,).

    Time is P * M * cap and memory P * M: for small pools only.
    """
    cap = budget if cap is None else min(cap, budget)
    choices = np.array([0, *range(2, cap + 1)])
    best = np.full(budget + 1, -np.inf)  # best[b]: most utility of the prompts so far with exactly b rollouts
    best[0] = 0.0
    chosen = np.zeros((len(belief), budget + 1), dtype=np.int64)
    for prompt in range(len(belief)):
        following = np.full(budget + 1, -np.inf)
        utilities = root_utility(belief[np.full(len(choices), prompt)], choices)
        for m, utility in zip(choices[choices <= budget].tolist(), utilities, strict=False):
            candidate = np.full(budget + 1, -np.inf)
            candidate[m:] = best[: budget + 1 - m] + utility
            better = candidate > following
            following[better] = candidate[better]
            chosen[prompt, better] = m
        best = following
    counts_P = np.zeros(len(belief), dtype=np.int64)
    left = int(np.flatnonzero(np.isfinite(best))[-1])
    for prompt in range(len(belief) - 1, -1, -1):
        counts_P[prompt] = chosen[prompt, left]
        left -= counts_P[prompt]
    return counts_P
