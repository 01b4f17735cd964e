"""`entropy-tree`: the uniform tree, branched where the policy hesitates (ARPO, TreeRL)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Anchors, Budget
from components.allocation.arms.treepo import TreePO
from components.allocation.prefixes import fall_back_to_roots, take_by_gain


class EntropyTree(TreePO):
    """Roots as in `treepo`; each tree's m_i N continuations go one each to its prefixes of highest action entropy.

    The entropy after a prefix is estimated by the surprisal of what was sampled there, per token. When every prefix has
    one continuation, the second round begins. ARPO watches the rise of entropy after a tool's answer and TreeRL the
    entropy of single tokens; here prefixes are turns, as for all arms.
    """

    name = "entropy-tree"

    def plan_continuations(self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
        budget_S = factual_S * budget.continuations
        prefix = np.flatnonzero(anchors.is_prefix_A)
        entropy = np.nan_to_num(anchors.surprisal_A[prefix], nan=0.0)
        rank = entropy / (1.0 + entropy.max(initial=0.0))  # in [0, 1): every first continuation comes before any second

        def gain(rows: np.ndarray, item: np.ndarray) -> np.ndarray:
            score: np.ndarray = 1.0 / (item + 1.0 - rank[rows])
            return score

        counts_A = fall_back_to_roots(anchors, anchors.is_prefix_A, budget_S)
        counts_A += take_by_gain(anchors, prefix, gain, budget_S, rng)
        return counts_A
