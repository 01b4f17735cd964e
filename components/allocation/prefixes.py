"""Stage 2, the prefix planner: Eq. 16, for every active prompt on its own budget, all prompts at once.

    maximise  sum_{j,t} V_pref(k_jt)   subject to   sum_{j,t} k_jt = m_i N

V_pref is concave in k, so taking the largest marginal gains is optimal. Where the belief is a distribution, the
factual outcomes below the prefix are evidence about V there, and V_pref is taken under the posterior (Bayes' rule): a
prefix is chosen because its rollout failed, and that it failed says something about it. A point belief stays as it is,
as in the paper. The budget is local on purpose: in a run, no prompt has to wait for the rollouts of another.

A prefix is *open* where its factual rollouts agree: one that already has both outcomes below it has its contrast, and
one without a scored rollout has no outcome to flip. A tree without an open prefix spends its budget at its root.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.anchors import Anchors
from components.allocation.budget import CONTINUATION_COST, ROOT_COST
from components.allocation.threshold import Gain, spread, take_largest
from components.allocation.utilities import prefix_gain


def plan_prefixes(anchors: Anchors, budget_S: np.ndarray, rng: Generator | None = None) -> np.ndarray:
    """Continuations for each anchor: the exact optimum of Eq. 16 in each tree, in expectation over the belief.

    Args:
        anchors: Visited anchors of the active prompts.
        budget_S: Continuations to spend in each tree, m_i N; int64 (S,).
        rng: Decides among equally good prefixes; without it a fixed generator does.

    Returns:
        Counts, zero at roots and at prefixes that are not open; int64 (A,). They sum to the budget in every tree with
        an open prefix, and to zero in the others.
    """
    open_A = np.flatnonzero(is_open(anchors))
    outcome_A = anchors.successes_A[open_A] > 0  # an open prefix has one kind of outcome: this one
    belief = anchors.belief[open_A].after(anchors.successes_A[open_A], anchors.failures_A[open_A])

    def gain(rows: np.ndarray, item: np.ndarray) -> np.ndarray:
        return prefix_gain(belief[rows], outcome_A[rows], item - 1)

    return take_by_gain(anchors, open_A, gain, budget_S, np.random.default_rng(0) if rng is None else rng)


def take_by_gain(anchors: Anchors, open_A: np.ndarray, gain: Gain, budget_S: np.ndarray, rng: Generator) -> np.ndarray:
    """Each tree's budget to the largest marginal gains of its open anchors; int64 (A,).

    Args:
        anchors: Visited anchors.
        open_A: Rows of the anchors that may branch.
        gain: Marginal gains, decreasing in the item; its rows count along `open_A`.
        budget_S: Continuations of each tree; int64 (S,).
        rng: Decides among equal gains.
    """
    tree_A = anchors.tree_A[open_A]
    taken, tied = take_largest(gain, budget_S[tree_A], tree_A, budget_S)
    left_S = budget_S - np.bincount(tree_A, weights=taken, minlength=len(budget_S)).astype(np.int64)
    counts_A = np.zeros(len(anchors), dtype=np.int64)
    counts_A[open_A] = taken + spread(tied, tree_A, left_S, rng)
    return counts_A


def is_open(anchors: Anchors) -> np.ndarray:
    """Whether a continuation could add the missing outcome: a prefix whose scored factual rollouts agree; bool (A,)."""
    agree_A: np.ndarray = (anchors.successes_A > 0) != (anchors.failures_A > 0)
    agree_A &= anchors.is_prefix_A
    return agree_A


def fall_back_to_roots(anchors: Anchors, open_A: np.ndarray, budget_S: np.ndarray) -> np.ndarray:
    """Factual rollouts for trees without an open prefix, as many as their continuations would have cost; int64 (A,).

    Args:
        anchors: Visited anchors; each tree's root is the anchor of turn 0.
        open_A: Whether the arm may branch at the anchor; bool (A,).
        budget_S: Continuations of each tree; int64 (S,). An odd one leaves half a unit unspent.
    """
    closed_S = np.bincount(anchors.tree_A[open_A], minlength=len(budget_S)) == 0
    extra_S = np.where(closed_S, (budget_S * (CONTINUATION_COST / ROOT_COST)).astype(np.int64), 0)
    return np.where(anchors.is_prefix_A, 0, extra_S[anchors.tree_A])
