"""`trace-unified`: one queue for both stages, over the whole pool (beyond the paper).

`trace` fixes what goes to roots (M) and to continuations (m_i N, inside each tree). Here the split M : N is one dial,
and continuations are global: stage 1 spends `root_share` of the budget on roots by Eq. 13, and the rest is one queue of
continuations from every open prefix of every tree, and of further factual rollouts for every tree whose rollouts agree
so far. A rollout is worth the chance of adding the missing outcome at its anchor (Eq. 15; a root with agreeing rollouts
is an anchor like any other), divided by its expected cost. docs/simulate.md compares it with `trace`: all turns are
equally long there; real ones are not, so the default price is in tokens.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Anchors, Arm, Belief, Budget, Seen
from components.allocation.budget import CONTINUATION_COST, ROOT_COST, cost_of
from components.allocation.roots import plan_roots
from components.allocation.threshold import take_largest
from components.allocation.utilities import prefix_gain


class TraceUnified(Arm):
    """Roots by Eq. 13 with a part of the budget, the rest by one queue.

    Attributes:
        root_share: Part of the whole budget that stage 1 spends on roots.
        per: What a rollout is expected to cost: `units` (App. E.5), or generated `tokens`, measured on the anchor's own
            factual rollouts.
        spends: What the queue may spend: what the iteration has left in `units`, as every arm; or as many `tokens` as
            these units would be in factual rollouts of this iteration, so that short continuations leave room for more.
            Units then end below or above the budget.
    """

    name = "trace-unified"
    uses_predictor = True
    branches = True
    is_local = False
    root_share = 0.6
    per: Literal["units", "tokens"] = "tokens"
    spends: Literal["units", "tokens"] = "units"

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return plan_roots(pool, max(2, int(self.root_share * budget.units)), budget.max_per_prompt, rng)

    def plan_continuations(self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
        rows = rng.permutation(np.flatnonzero((anchors.successes_A > 0) != (anchors.failures_A > 0)))
        cost = cost_of(anchors.is_prefix_A[rows])
        size = (cost / CONTINUATION_COST).astype(np.int64)  # in continuations, so that what is taken is whole
        left = int((budget.units - ROOT_COST * factual_S.sum()) / CONTINUATION_COST)
        if self.spends == "tokens":
            left = int(left * CONTINUATION_COST * _tokens_per_factual_rollout(anchors, factual_S))
            size = np.minimum(_tokens(anchors, rows), left + 1.0).astype(np.int64)  # unknown: too large to fit
        belief = anchors.belief[rows].after(anchors.successes_A[rows], anchors.failures_A[rows])
        outcome, price = anchors.successes_A[rows] > 0, cost if self.per == "units" else _tokens(anchors, rows)

        def gain(mine: np.ndarray, item: np.ndarray) -> np.ndarray:
            density: np.ndarray = prefix_gain(belief[mine], outcome[mine], item - 1) / price[mine]
            return density

        one = np.zeros(len(rows), dtype=np.int64)
        taken, tied = take_largest(gain, left // size, one, np.array([left]), size_A=size)
        left -= int(taken.sum())
        while (fitting := (tied > 0) & (size <= left)).any():  # one round among the tied, in the order of `rows`
            fits = fitting & (np.cumsum(np.where(fitting, size, 0)) <= left)
            taken, tied = taken + size * fits, tied - size * fits
            left -= int(size[fits].sum())
        counts_A = np.zeros(len(anchors), dtype=np.int64)
        counts_A[rows] = taken // size
        return counts_A


def _tokens(anchors: Anchors, rows: np.ndarray) -> np.ndarray:
    """Expected tokens of one rollout from each anchor, at least 1; inf where unknown: last in the queue."""
    tokens: np.ndarray = np.maximum(np.nan_to_num(anchors.suffix_tokens_A[rows], nan=np.inf), 1.0)
    return tokens


def _tokens_per_factual_rollout(anchors: Anchors, factual_S: np.ndarray) -> float:
    roots = np.flatnonzero(~anchors.is_prefix_A)
    tokens, weight = _tokens(anchors, roots), factual_S[anchors.tree_A[roots]]
    known = np.isfinite(tokens)
    return float(np.average(tokens[known], weights=weight[known])) if weight[known].any() else 0.0
