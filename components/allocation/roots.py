"""Stage 1, the root planner: the exact optimum of Eq. 13.

    maximise  sum_i V_root(m_i; v_i)   subject to   sum_i m_i = M,   m_i in {0} or {2, ..., cap}

Why a threshold is exact. Let q = E[v (1-v)]. The first pair of a prompt gains 2 q, the third rollout q, and every later
one less (`root_gain` decreases). Were a single first rollout worth q, the utility would be concave with gains q, q, q,
g_3, g_4, ..., and taking the M largest gains of all prompts would be optimal. That plan can break the rule m_i != 1
only where exactly one unit is left for prompts whose q is the threshold itself. Then either (a) the unit goes to the
active prompt with the best next gain, or (b) the active prompt with the smallest last gain gives one up, and the pair
opens the new prompt. Every other deviation from the relaxed plan contains one of these and loses more, so the better
one is optimal. Tests hold this against the paper's dynamic programme.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.anchors import Belief
from components.allocation.threshold import Gain, spread, take_largest
from components.allocation.utilities import contrast, root_gain


def plan_roots(
    belief: Belief,
    budget: int,
    cap: int | None = None,
    rng: Generator | None = None,
    weight_P: np.ndarray | None = None,
) -> np.ndarray:
    """Factual rollouts for each prompt of the pool: the exact optimum of Eq. 13, in expectation over the belief.

    Where no plan spends the budget exactly (a budget of 1, an odd one with a cap of 2, more than P * cap), the largest
    total that a plan can spend is spent; `budget - counts.sum()` is unspent. Prompts that gain nothing (v = 0 or 1)
    get rollouts only after every useful one.

    Args:
        belief: Chance of success of each prompt.
        budget: M, factual rollouts to spend.
        cap: Most rollouts of one prompt, at least 2; None for no cap.
        rng: Decides among equally good prompts; without it a fixed generator does.
        weight_P: What a mixed group of each prompt is worth, non-negative; 1 without it. float64 (P,).

    Returns:
        Counts, each 0 or at least 2; int64 (P,).

    Raises:
        ValueError: if the budget is negative or the cap below 2.
    """
    if budget < 0:
        raise ValueError(f"budget={budget}: a budget cannot be negative")
    if cap is not None and cap < 2:
        raise ValueError(f"cap={cap}: a single rollout has no contrast, so the cap must be at least 2")
    rng = np.random.default_rng(0) if rng is None else rng
    counts_P = np.zeros(len(belief), dtype=np.int64)
    budget, cap = _feasible(budget, cap, len(belief))
    if budget == 0:
        return counts_P
    weight_P = np.ones(len(belief)) if weight_P is None else weight_P
    q_P = weight_P * contrast(belief)
    kept, least = _worth_a_look(q_P, budget, cap)
    pool, weight, q = belief[kept], weight_P[kept], q_P[kept]

    # The pair and the third rollout gain q a unit, so they are one item of three units, taken whole or tied: the rule
    # m_i != 1 matters only for what is left at the end. Item i is rollout i + 2. With a cap of 2, the item is a pair.
    def gain(rows: np.ndarray, item: np.ndarray) -> np.ndarray:
        gain = root_gain(pool[rows], item + 1)
        gain *= weight[rows]
        return gain

    one_segment = np.zeros(len(pool), dtype=np.int64)
    first_size = min(cap, 3)
    items = np.full(len(pool), cap - first_size + 1)
    taken, tied = take_largest(gain, items, one_segment, np.array([budget]), first_size, at_least=least)
    left = budget - int(taken.sum())
    if left == 1 and not tied[taken > 0].any():  # the last unit opens no prompt, and no active one has a gain of q left
        _repair(gain, q, taken, np.flatnonzero(tied), cap, rng)
    elif left:
        _give_to_tied(taken, tied, left, first_size, rng)
    counts_P[kept] = taken
    return counts_P


def _feasible(budget: int, cap: int | None, prompts: int) -> tuple[int, int]:
    """The largest total that some plan can spend, and the cap as a number."""
    cap = max(2, budget) if cap is None else min(cap, max(2, budget))
    budget = min(budget, prompts * cap)
    if cap == 2:
        budget -= budget % 2
    return (budget if budget >= 2 else 0), cap


def _worth_a_look(q_P: np.ndarray, budget: int, cap: int) -> tuple[np.ndarray, float]:
    """Rows of the prompts that can get something, and the least gain they are for.

    The first three units (cap 2: two) of the prompts with the largest q exhaust the budget: nothing below that q is
    taken.
    """
    best = -(-budget // min(cap, 3)) + 1
    if best > len(q_P):
        return np.arange(len(q_P)), 0.0
    least = np.partition(q_P, len(q_P) - best)[len(q_P) - best] * (1 - 1e-12)  # q is rounded otherwise than `root_gain`
    return np.flatnonzero(q_P >= least), float(least)


def _give_to_tied(taken: np.ndarray, tied: np.ndarray, left: int, first_size: int, rng: Generator) -> None:
    """Spends `left` units on units of equal gain, in place: new prompts by threes (or twos), then further rollouts."""
    new = rng.permutation(np.flatnonzero((taken == 0) & (tied > 0)))
    opened = new[: left // first_size]
    taken[opened] += first_size
    tied[opened] -= first_size
    left -= first_size * len(opened)
    if left and len(opened) < len(new):
        if left == 1 and not tied[taken > 0].any():  # one unit opens no prompt: a third rollout, as good, joins it
            taken[opened[-1]] -= 1
            left = 2
        if left == 2:
            taken[new[len(opened)]] = 2
            return
    room = np.where(taken > 0, tied, 0)
    taken += spread(room, np.zeros(len(room), dtype=np.int64), np.array([left]), rng)


def _repair(gain: Gain, q: np.ndarray, taken: np.ndarray, tied: np.ndarray, cap: int, rng: Generator) -> None:
    """One unit is left, and one more opens no prompt: the better of a further rollout (a) and a swap for a pair (b)."""
    active = rng.permutation(np.flatnonzero(taken))
    new = rng.choice(tied)
    open_ = active[taken[active] < cap]
    next_gain = gain(open_, taken[open_] - 1)  # rollout m + 1 is item m - 1
    last_gain = gain(active, taken[active] - 2)
    if len(open_) and next_gain.max() >= 2.0 * q[new] - last_gain.min():
        taken[open_[next_gain.argmax()]] += 1
    else:
        taken[active[last_gain.argmin()]] -= 1
        taken[new] = 2
