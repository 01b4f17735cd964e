"""Utilities (Eq. 12, 15) and their expectation over a Beta belief."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from components.allocation.anchors import Belief
from components.allocation.utilities import (
    contrast,
    power_mean,
    prefix_gain,
    prefix_utility,
    root_gain,
    root_utility,
)

MEAN = st.floats(0.0, 1.0)
CONCENTRATION = st.one_of(st.floats(1e-3, 1e12), st.just(np.inf))


def one(mean: float, concentration: float) -> Belief:
    return Belief(np.array([mean]), np.array([concentration]))


def counts(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_root_utility_by_hand():
    belief = Belief.point(np.array([0.5, 0.5, 0.5, 0.2, 0.0, 1.0]))
    expected = [0.0, 0.0, 0.5, 1 - 0.2**3 - 0.8**3, 0.0, 0.0]
    assert root_utility(belief, counts(0, 1, 2, 3, 5, 5)) == pytest.approx(expected)


def test_prefix_utility_by_hand():
    belief = Belief.point(np.array([0.9, 0.9, 0.3]))
    outcome = np.array([True, False, False])
    assert prefix_utility(belief, outcome, counts(2, 2, 1)) == pytest.approx([1 - 0.81, 1 - 0.01, 0.3])


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.3), (0.05, 2.0), (1.0, 1.0), (7.0, 3.0), (40.0, 60.0)])
@pytest.mark.parametrize("m", [2, 3, 10, 50])
def test_expected_utility_agrees_with_quadrature(a, b, m):
    belief = one(a / (a + b), a + b)

    def mean(f):
        tiny = 1e-9  # the density may have poles at 0 and 1, where the utility vanishes
        points = [1e-6, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-6]
        return quad(lambda v: f(v) * beta.pdf(v, a, b), tiny, 1 - tiny, points=points, limit=400)[0]

    assert root_utility(belief, counts(m))[0] == pytest.approx(mean(lambda v: 1 - v**m - (1 - v) ** m), abs=1e-4)
    assert prefix_gain(belief, np.array([True]), counts(m))[0] == pytest.approx(
        mean(lambda v: v**m * (1 - v)), abs=1e-5
    )


@given(mean=MEAN, concentration=CONCENTRATION, m=st.integers(2, 200))
def test_gain_is_the_difference_of_utilities(mean, concentration, m):
    belief = one(mean, concentration)
    difference = root_utility(belief, counts(m + 1)) - root_utility(belief, counts(m))
    assert root_gain(belief, counts(m)) == pytest.approx(difference, abs=1e-9)
    outcome = np.array([m % 2 == 0])
    difference = prefix_utility(belief, outcome, counts(m + 1)) - prefix_utility(belief, outcome, counts(m))
    assert prefix_gain(belief, outcome, counts(m)) == pytest.approx(difference, abs=1e-9)


@given(mean=MEAN, concentration=CONCENTRATION)
def test_pair_and_third_rollout_gain_alike(mean, concentration):
    belief = one(mean, concentration)
    q = contrast(belief)[0]
    assert root_utility(belief, counts(2))[0] == pytest.approx(2 * q, abs=1e-12)
    assert root_gain(belief, counts(2))[0] == pytest.approx(q, rel=1e-9)


@given(mean=MEAN, concentration=CONCENTRATION, m=st.integers(2, 10_000))
def test_gains_decrease(mean, concentration, m):
    belief = one(mean, concentration)
    here, there = root_gain(belief, counts(m))[0], root_gain(belief, counts(m + 1))[0]
    assert 0 <= there <= here * (1 + 1e-9)


@given(mean=st.floats(0.01, 0.99), m=st.integers(1, 10**6))
def test_large_concentration_is_the_point_belief(mean, m):
    point = power_mean(np.array([mean]), np.array([np.inf]), counts(m))
    sharp = power_mean(np.array([mean]), np.array([1e18]), counts(m))
    assert sharp == pytest.approx(point, rel=1e-6, abs=1e-300)


@given(mean=st.floats(0.01, 0.99), concentration=st.floats(0.01, 1e9))
def test_product_and_closed_form_meet(mean, concentration):
    c = np.array([concentration])
    at = [power_mean(np.array([mean]), c, counts(m))[0] for m in (32, 33)]
    assert at[1] == pytest.approx(at[0] * (mean * concentration + 32) / (concentration + 32), rel=1e-9)


def test_ignorance_is_not_contrast():
    """Predicted 0.5: the plug-in takes it for the best prompt of all; a belief that knows nothing does not."""
    known, unknown, middling = one(0.5, np.inf), one(0.5, 0.2), one(0.2, np.inf)
    assert contrast(known) > contrast(middling) > contrast(unknown)


def test_belief_refuses_what_is_no_distribution():
    with pytest.raises(ValueError, match="row 1 of a belief has mean nan"):
        Belief.point(np.array([0.5, np.nan]))
    with pytest.raises(ValueError, match="concentration 0"):
        one(0.5, 0.0)
    with pytest.raises(ValueError, match=r"mean 1\.5"):
        one(1.5, 2.0)
