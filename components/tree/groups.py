"""Groups: the members among which an advantage is formed, and why a group may have none.

A group lives if its scored members differ. Otherwise it is dropped, for one reason, and leaves the loss entirely:
numerator and denominator. Members without a reward are masked and take no part in mean, deviation or count.
"""

from __future__ import annotations

import numpy as np

EPS = 1e-6
"""Rewards that differ by no more than this are equal: a deviation made of rounding noise would be scaled up to 1."""

ALL_PASS, ALL_FAIL, CONSTANT, SINGLETON, UNSCORED = "all_pass", "all_fail", "constant", "singleton", "unscored"
REASONS = (ALL_PASS, ALL_FAIL, CONSTANT, SINGLETON, UNSCORED)


def why_dropped(reward_M: np.ndarray) -> str | None:
    """The reason why a group has no contrast, or None if it has.

    Args:
        reward_M: Rewards or values of the members, NaN where not scored; float64.

    Returns:
        `unscored`: fewer than two scored members, because others could not be scored; `singleton`: only one member;
        `all_pass`, `all_fail`, `constant`: all scored members are equal, to 1, to 0, or to something else.
    """
    scored = reward_M[np.isfinite(reward_M)]
    if len(scored) < 2:
        return UNSCORED if len(scored) < len(reward_M) else SINGLETON
    if scored.max() - scored.min() > EPS:
        return None
    if abs(scored[0] - 1.0) <= EPS:
        return ALL_PASS
    return ALL_FAIL if abs(scored[0]) <= EPS else CONSTANT


def normalised(reward_M: np.ndarray) -> np.ndarray:
    """(r - mean) / std over the scored members, the population's deviation; 0 without contrast; NaN if unscored."""
    scored = np.isfinite(reward_M)
    advantage_M = np.where(scored, 0.0, np.nan)
    if why_dropped(reward_M) is None:
        members = reward_M[scored]
        advantage_M[scored] = (members - members.mean()) / members.std()
    return advantage_M


def leave_one_out(reward_M: np.ndarray, weight_M: np.ndarray | None = None) -> np.ndarray:
    """r minus the (weighted) mean of the *other* scored members; 0 in a group without contrast; NaN if unscored.

    The baseline of a member does not depend on what that member did, so that it does not bias the gradient.
    """
    weight_M = np.ones(len(reward_M)) if weight_M is None else weight_M
    scored = np.isfinite(reward_M)
    advantage_M = np.where(scored, 0.0, np.nan)
    if why_dropped(reward_M) is None:
        r, w = reward_M[scored], weight_M[scored]
        advantage_M[scored] = r - ((w * r).sum() - w * r) / (w.sum() - w)
    return advantage_M
