"""Taking the largest marginal gains of many concave utilities under a budget, for many budgets at once.

For decreasing gains, taking units in order of their gain is optimal, and what is taken is described by one number, the
threshold: the gain of the last unit that fits. It is found by bisection. The floats between 0 and the largest gain are
bisected by their bit patterns, which order as they do, so that the search is exact and ends after at most 63 steps.
Each row keeps a bracket on its number of units above the threshold and leaves the search when its bracket closes: a
halving interval of thresholds is looked at by about half as many rows, so that the work is a few passes over the rows.

Rows (`_A`) are prompts or anchors. A segment (`_S`) is what has a budget of its own: the whole pool, or a tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

Gain = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Gain of item `index` (1, 2, ...) of rows `rows`: non-negative, not increasing in `index`; both int64 (n,)."""

_OCTAVE = 1 << 52  # the distance in bit patterns between x and 2 x


def take_largest(
    gain: Gain,
    limit_A: np.ndarray,
    segment_A: np.ndarray,
    budget_S: np.ndarray,
    first_size: int = 1,
    size_A: np.ndarray | None = None,
    at_least: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Units whose gain lies above the threshold of their segment, and units whose gain is exactly at it.

    Where a segment has more units than its budget, ``taken <= budget <= taken + tied``, summed over its rows: the
    caller decides among the tied. Otherwise everything is taken.

    Args:
        gain: Gain per unit of each item.
        limit_A: Items that each row has; int64 (A,).
        segment_A: Segment of each row, in [0, S); int64 (A,).
        budget_S: Units to take in each segment; int64 (S,).
        first_size: Units in the first item of each row; every other item is one unit.
        size_A: Units in every item of a row, where rows differ, int64 (A,); not with `first_size`. The tied items may
            then be larger than what is left of the budget.
        at_least: A lower bound of every threshold, where one is known; it only saves time.

    Returns:
        Units taken and units tied for each row; int64 (A,) both.
    """
    segments = len(budget_S)
    taken_A = np.zeros(len(limit_A), dtype=np.int64)
    tied_A = np.zeros(len(limit_A), dtype=np.int64)

    def units(items: np.ndarray, of: np.ndarray | slice) -> np.ndarray:
        total: np.ndarray = items * size_A[of] if size_A is not None else items + (first_size - 1) * (items > 0)
        return total

    whole_A = units(limit_A, slice(None))
    everything_A = (np.bincount(segment_A, weights=whole_A, minlength=segments) <= budget_S)[segment_A]
    taken_A[everything_A] = whole_A[everything_A]
    rows = np.flatnonzero(~everything_A & (limit_A > 0) & (budget_S[segment_A] > 0))
    if not rows.size:
        return taken_A, tied_A

    # The search. `low` items of a row are surely taken, at most `high` are taken or tied.
    low, high = np.zeros(len(rows), dtype=np.int64), limit_A[rows]
    settled_S = np.zeros(segments)  # units of the rows that have left the search
    largest_S = np.zeros(segments)
    np.maximum.at(largest_S, segment_A[rows], gain(rows, np.ones_like(rows)))
    # Thresholds as bit patterns. At `above_S` too few units reach the threshold, at `below_S` enough do.
    above_S = largest_S.view(np.int64) + 1
    below_S = np.full(segments, at_least).view(np.int64)
    # Most thresholds lie near the largest gain, and few near 0. So first go down by 1, 2, 4, ... octaves until enough
    # units reach the threshold, and bisect only then.
    gallop_S = np.ones(segments, dtype=bool)
    step = _OCTAVE
    while rows.size:
        segment = segment_A[rows]
        middle_S = np.where(gallop_S, np.maximum(above_S - step, below_S), (above_S + below_S) // 2)
        count = _count(gain, rows, low, high, middle_S.view(np.float64)[segment])
        reached_S = settled_S + np.bincount(segment, weights=units(count, rows), minlength=segments)
        enough_S, exact_S = reached_S >= budget_S, reached_S == budget_S
        below_S, above_S = np.where(enough_S, middle_S, below_S), np.where(enough_S, above_S, middle_S)
        gallop_S &= ~enough_S
        step = min(2 * step, 1 << 61)
        enough, exact = enough_S[segment], exact_S[segment]
        low = np.where(exact | ~enough, count, low)  # too few reach it: those that do are taken
        high = np.where(enough, count, high)  # enough reach it: those that do not are left; exactly enough: both
        # A row leaves when its bracket has closed, or when no float is left between its segment's bounds: what is then
        # between low and high has the threshold itself as its gain.
        leaving = (low == high) | (above_S - below_S <= 1)[segment]
        if leaving.any():
            out = rows[leaving]
            taken_A[out] = units(low[leaving], out)
            tied_A[out] = units(high[leaving], out) - taken_A[out]
            settled_S += np.bincount(segment[leaving], weights=taken_A[out], minlength=segments)
            rows, low, high = rows[~leaving], low[~leaving], high[~leaving]
        if rows.size > 0.8 * len(segment):  # few have left: equal gains, perhaps, which bisection would part one by one
            _tighten(gain, rows, segment_A[rows], low, high, above_S, below_S)
    return taken_A, tied_A


def spread(room_A: np.ndarray, segment_A: np.ndarray, amount_S: np.ndarray, rng: Generator) -> np.ndarray:
    """Deals units out evenly, one round after the other, among rows that are equally good; at random in the last round.

    Args:
        room_A: Units that each row can still take; int64 (A,).
        segment_A: Segment of each row; int64 (A,).
        amount_S: Units to deal out in each segment; what exceeds the room is not dealt. int64 (S,).
        rng: Decides who gets the units of the last, incomplete round.

    Returns:
        Units for each row; int64 (A,).
    """
    segments = len(amount_S)

    def dealt(level_S: np.ndarray) -> np.ndarray:
        given_A = np.minimum(room_A, level_S[segment_A])
        return np.bincount(segment_A, weights=given_A, minlength=segments).astype(np.int64)

    low_S = np.zeros(segments, dtype=np.int64)  # full rounds that can surely be dealt
    high_S = np.zeros(segments, dtype=np.int64)
    np.maximum.at(high_S, segment_A, room_A)
    high_S = np.minimum(high_S, amount_S)
    while (low_S < high_S).any():
        middle_S = (low_S + high_S + 1) // 2
        fits_S = dealt(middle_S) <= amount_S
        low_S, high_S = np.where(fits_S, middle_S, low_S), np.where(fits_S, high_S, middle_S - 1)
    result_A: np.ndarray = np.minimum(room_A, low_S[segment_A])
    rest_S = amount_S - dealt(low_S)
    # The last round: the rows with room, shuffled within their segment; the first rest_S of each segment win.
    open_rows = np.flatnonzero((room_A > result_A) & (rest_S[segment_A] > 0))
    order = open_rows[np.lexsort((rng.random(len(open_rows)), segment_A[open_rows]))]
    first = np.searchsorted(segment_A[order], segment_A[order])
    result_A[order[np.arange(len(order)) - first < rest_S[segment_A[order]]]] += 1
    return result_A


def _tighten(
    gain: Gain,
    rows: np.ndarray,
    segment: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    above_S: np.ndarray,
    below_S: np.ndarray,
) -> None:
    """Draws the bounds in, in place, to the gains still in doubt, so that many equal gains end the search at once."""
    present_S = np.zeros(len(above_S), dtype=bool)
    present_S[segment] = True
    largest_S, smallest_S = np.zeros(len(above_S)), np.full(len(above_S), np.inf)
    np.maximum.at(largest_S, segment, gain(rows, low + 1))
    np.minimum.at(smallest_S, segment, gain(rows, high))
    np.minimum(above_S, largest_S.view(np.int64) + 1, out=above_S, where=present_S)
    np.maximum(below_S, smallest_S.view(np.int64), out=below_S, where=present_S)  # `high` items of all rows are enough


def _count(gain: Gain, rows: np.ndarray, low: np.ndarray, high: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Items of each row whose gain is at least `threshold`, known to lie in [low, high]: by doubling, then halving."""
    low, high = low.copy(), high.copy()
    low[threshold <= 0.0] = high[threshold <= 0.0]  # every gain reaches 0
    step = 1
    searching = np.flatnonzero(low < high)
    while searching.size:
        sure, possible = low[searching], high[searching]
        probe = np.minimum(sure + step, (sure + possible + 1) // 2)  # brackets are wide, and the answers mostly small
        passed = gain(rows[searching], probe) >= threshold[searching]
        low[searching] = np.where(passed, probe, sure)
        high[searching] = np.where(passed, possible, probe - 1)
        searching = searching[low[searching] < high[searching]]
        step *= 2
    return low
