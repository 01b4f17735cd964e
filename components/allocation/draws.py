"""Uniform choices: the baselines of both stages."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.anchors import Anchors
from components.allocation.budget import Budget
from components.allocation.prefixes import fall_back_to_roots


def groups_in(budget: Budget) -> int:
    """Flat groups of G factual rollouts that the whole budget pays for."""
    return int(budget.units) // budget.group_size


def flat_groups(prompts: np.ndarray, pool_size: int, group_size: int) -> np.ndarray:
    """`group_size` factual rollouts for each of `prompts`, none for the others; int64 (P,)."""
    counts_P = np.zeros(pool_size, dtype=np.int64)
    counts_P[prompts] = group_size
    return counts_P


def uniform_prompts(pool_size: int, number: int, rng: Generator) -> np.ndarray:
    """`number` different prompts, each as likely as any other; the whole pool where it is smaller. int64."""
    return rng.choice(pool_size, size=min(number, pool_size), replace=False)


def uniform_tree_roots(pool_size: int, budget: Budget, rng: Generator) -> np.ndarray:
    """M factual rollouts in groups of G/2 for uniformly drawn prompts, as TreePO has them; int64 (P,)."""
    each = max(1, budget.group_size // 2)
    return flat_groups(uniform_prompts(pool_size, budget.root_units // each, rng), pool_size, each)


def uniform_prefixes(anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
    """m_i N continuations for each tree, each from a uniformly drawn turn of its factual rollouts; int64 (A,).

    Every pair (j, t) of Eq. 14 is equally likely, so a prefix that several rollouts share is drawn as often as they are
    many. A tree without a prefix turns its budget into factual rollouts.
    """
    budget_S = factual_S * budget.continuations
    passes_A = np.where(anchors.is_prefix_A, np.maximum(anchors.successes_A + anchors.failures_A, 1), 0)
    counts_A = fall_back_to_roots(anchors, anchors.is_prefix_A, budget_S)
    # The pairs of all trees stand in one line, tree after tree. A draw is a place in its tree's part of the line.
    order = np.argsort(anchors.tree_A, kind="stable")
    edges = np.concatenate([[0], np.cumsum(passes_A[order])])  # where each anchor's pairs begin
    pairs_S = np.bincount(anchors.tree_A, weights=passes_A, minlength=len(factual_S)).astype(np.int64)
    tree = np.repeat(np.arange(len(factual_S)), np.where(pairs_S > 0, budget_S, 0))
    drawn = (np.cumsum(pairs_S) - pairs_S)[tree] + rng.integers(0, pairs_S[tree])
    anchor = order[np.searchsorted(edges, drawn, side="right") - 1]
    return counts_A + np.bincount(anchor, minlength=len(anchors))


def nearest_to_half(rate_P: np.ndarray, number: int, rng: Generator) -> np.ndarray:
    """The `number` prompts whose rate is nearest 0.5, nearest first; equally near ones in random order. int64."""
    return np.lexsort((rng.random(len(rate_P)), np.abs(rate_P - 0.5)))[:number]
