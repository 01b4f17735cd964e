"""What a rollout is worth: the utilities of both stages, and their marginal gains.

Root (Eq. 12): the chance that m factual rollouts of a prompt hold both outcomes,

    V_root(m; v) = 1 - v^m - (1-v)^m     for m >= 2, else 0.

Prefix (Eq. 15): the chance that one of k continuations flips the outcome of a factual rollout that passed here,

    V_pref(k; v, r) = 1 - c^k,           c = v if r = 1, else 1 - v     (the chance of repeating r).

Both are taken in expectation over the belief about v. A Beta distribution with mean mu and concentration c has

    E[v^m] = prod_{i<m} (alpha + i) / (c + i) = prod_{i<m} (mu + i s) / (1 + i s),     c = alpha + beta,  s = 1 / c,

so that the plug-in form is the case s = 0, and one code path serves both. A belief that knows nothing has a small
concentration: its expected utility is low where the plug-in at its mean of 0.5 would be the highest of all.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from components.allocation.anchors import Belief

_PRODUCT_UP_TO = 32  # powers up to here by the product, beyond by its closed form
_STIRLING_FROM = 1000.0  # arguments from here on by Stirling's series, below by gammaln: neither cancels


def power_mean(mean: np.ndarray, concentration: np.ndarray, power: np.ndarray) -> np.ndarray:
    """E[v^power] under Beta distributions, elementwise; `concentration` inf means v = mean.

    Relative error is below about power * 1e-15.

    Args:
        mean: In [0, 1]; float64 (A,).
        concentration: Positive or inf; float64 (A,).
        power: At least 0; int64 (A,).
    """
    result = np.ones(mean.shape)
    if not mean.size:
        return result
    spread = 1.0 / concentration
    point = not spread.any()
    large = power > _PRODUCT_UP_TO
    # One factor for all rows at a time. Below the smallest power every row needs it, so no mask is made.
    bottom, top = int(power.min()), int(power.max(initial=0, where=~large))
    for i in range(top):
        factor = mean if i == 0 or point else (mean + i * spread) / (1.0 + i * spread)
        np.multiply(result, factor, out=result, where=True if i < bottom else power > i)
    if large.any():
        result[large] = _power_mean_closed(mean[large], concentration[large], power[large])
    return result


def contrast(belief: Belief) -> np.ndarray:
    """E[v (1-v)], float64 (A,): the contrast potential (Proposition 2), and the gain per rollout of the first three."""
    return belief.mean_A * (1.0 - belief.mean_A) / (1.0 + 1.0 / belief.concentration_A)


def root_utility(belief: Belief, count: np.ndarray) -> np.ndarray:
    """E[V_root(count)] (Eq. 12), float64 (A,): the chance that `count` factual rollouts hold both outcomes."""
    count = np.asarray(count, dtype=np.int64)
    same = power_mean(belief.mean_A, belief.concentration_A, count)
    same += power_mean(1.0 - belief.mean_A, belief.concentration_A, count)
    return np.where(count >= 2, np.maximum(1.0 - same, 0.0), 0.0)


def root_gain(belief: Belief, count: np.ndarray) -> np.ndarray:
    """V_root(count + 1) - V_root(count) for count >= 2, float64 (A,): E[v^count (1-v) + (1-v)^count v].

    It decreases in `count`. At count = 2 it equals E[v (1-v)], half of what the first pair gains: the pair and the
    third rollout have the same gain per rollout.
    """
    # Not the difference of two utilities: both are near 1 for large counts, and the difference would be rounding noise.
    gain = _gain(belief.mean_A, belief.concentration_A, count)
    gain += _gain(1.0 - belief.mean_A, belief.concentration_A, count)
    return gain


def prefix_utility(belief: Belief, outcome: np.ndarray, count: np.ndarray) -> np.ndarray:
    """E[V_pref(count)] (Eq. 15), float64 (A,): the chance that one of `count` continuations differs from `outcome`.

    Args:
        belief: Chance of success at the prefix.
        outcome: Whether the factual rollout through the prefix succeeded; bool (A,).
        count: Continuations; int64 (A,).
    """
    count = np.asarray(count, dtype=np.int64)
    return 1.0 - power_mean(_repeat(belief, outcome), belief.concentration_A, count)


def prefix_gain(belief: Belief, outcome: np.ndarray, count: np.ndarray) -> np.ndarray:
    """V_pref(count + 1) - V_pref(count), float64 (A,): E[c^count (1-c)], which decreases in `count`."""
    return _gain(_repeat(belief, outcome), belief.concentration_A, count)


def _repeat(belief: Belief, outcome: np.ndarray) -> np.ndarray:
    """Mean of c, the chance of repeating `outcome`. Mirroring v keeps the concentration."""
    return np.where(outcome, belief.mean_A, 1.0 - belief.mean_A)


def _gain(mean: np.ndarray, concentration: np.ndarray, power: np.ndarray) -> np.ndarray:
    """E[v^power (1-v)] = E[v^power] (1-mu) / (1 + power s)."""
    gain = power_mean(mean, concentration, power)
    gain *= (1.0 - mean) / (1.0 + power / concentration)
    return gain


def _power_mean_closed(mean: np.ndarray, concentration: np.ndarray, power: np.ndarray) -> np.ndarray:
    """`power_mean` as a ratio of rising factorials, for powers whose product would take long."""
    point = np.isinf(concentration) | (mean == 0.0) | (mean == 1.0)
    result: np.ndarray = np.power(mean, power)
    if not point.all():
        c, m = concentration[~point], power[~point].astype(np.float64)
        result[~point] = np.exp(_log_rising(mean[~point] * c, m) - _log_rising(c, m))
    return result


def _log_rising(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    """log of x (x+1) ... (x+m-1), without the cancellation of two large log-gammas."""
    rising: np.ndarray = gammaln(x + m) - gammaln(x)
    large = x >= _STIRLING_FROM
    x, m = x[large], m[large]
    # log Gamma(z) = (z - 1/2) log z - z + log(2 pi)/2 + 1/(12 z) - ...; the difference of the two series at x + m and x
    # is written with log1p(m / x), so that no large terms are subtracted. The next term is below 1e-11 here.
    rising[large] = (x - 0.5) * np.log1p(m / x) + m * (np.log(x + m) - 1.0) + (1.0 / (x + m) - 1.0 / x) / 12.0
    return rising
