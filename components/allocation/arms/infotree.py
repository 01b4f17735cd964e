"""`infotree`: the uniform tree, branched by an upper confidence bound (InfoTree, arXiv 2605.05262)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Anchors, Budget
from components.allocation.arms.treepo import TreePO
from components.allocation.prefixes import fall_back_to_roots, take_by_gain
from components.allocation.utilities import contrast

EXPLORATION, ENTROPY = 0.1, 0.1  # weights of the second and third term


class InfoTree(TreePO):
    """Roots as in `treepo`; continuations by a score of three terms: contrast, few visits, entropy.

        score = E[v (1-v)] / n + c_1 sqrt(log(1 + B) / n) + c_2 entropy / n,    n = visits and continuations so far

    The public description names the three terms, and that they are marginal gains of a submodular objective. The exact
    form, the division by the visits and the constants are this project's. Its learned budget allocator and speculative
    expansion are left out, so that the arm differs from `entropy-tree` and `trace-prefix` in the score alone.
    """

    name = "infotree"
    uses_predictor = True

    def plan_continuations(self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
        budget_S = factual_S * budget.continuations
        prefix = np.flatnonzero(anchors.is_prefix_A)
        exploit = contrast(anchors.belief[prefix]) + ENTROPY * np.nan_to_num(anchors.surprisal_A[prefix], nan=0.0)
        explore = EXPLORATION * np.sqrt(np.log1p(budget_S[anchors.tree_A[prefix]]))
        visits = np.maximum(anchors.successes_A[prefix] + anchors.failures_A[prefix], 1)

        def gain(rows: np.ndarray, item: np.ndarray) -> np.ndarray:
            n = visits[rows] + item - 1.0
            score: np.ndarray = exploit[rows] / n + explore[rows] / np.sqrt(n)
            return score

        counts_A = fall_back_to_roots(anchors, anchors.is_prefix_A, budget_S)
        counts_A += take_by_gain(anchors, prefix, gain, budget_S, rng)
        return counts_A
