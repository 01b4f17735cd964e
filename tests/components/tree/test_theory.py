"""The three propositions (section 3 of the paper), exactly on enumerable trees, and by simulation.

A process is a nested list: a number is a terminal history's chance of reward, a list an inner history whose next turn
is drawn uniformly from its entries (repeated entries make other chances).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.allocation.anchors import Belief
from components.allocation.roots import plan_roots
from components.allocation.utilities import root_utility
from components.tree.groups import normalised

PROCESS = st.recursive(
    st.floats(0, 1, allow_nan=False), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=20
)


def value(history: Any) -> float:
    """V(H) = E[r | H], by dynamic programming."""
    return float(np.mean([value(h) for h in history])) if isinstance(history, list) else history


def at_turn(history: Any, turn: int) -> list[tuple[float, Any]]:
    """Distribution of H_t; a process that ended earlier stays where it is."""
    if turn == 0 or not isinstance(history, list):
        return [(1.0, history)]
    return [(p / len(history), h) for child in history for p, h in at_turn(child, turn - 1)]


def depth(history: Any) -> int:
    return 1 + max(map(depth, history)) if isinstance(history, list) else 0


def quadratic_variation(history: Any) -> float:
    """Expected sum of (V_{s+1} - V_s)^2 over the remaining turns, the reward being the last step."""
    here = value(history)
    if not isinstance(history, list):
        return here * (1 - here)
    return float(np.mean([(value(h) - here) ** 2 + quadratic_variation(h) for h in history]))


@given(process=PROCESS)
def test_proposition_1_a_prefix_never_predicts_worse_than_its_root(process):
    errors = [sum(p * value(h) * (1 - value(h)) for p, h in at_turn(process, t)) for t in range(depth(process) + 1)]
    assert (np.diff(errors) <= 1e-12).all()


@given(process=PROCESS, group=st.integers(1, 6))
def test_proposition_1_for_the_success_of_a_group(process, group):
    """The target is the mean reward of `group` rollouts continued from the deepest history; E[. | H_t] is still V_t."""
    last = at_turn(process, depth(process))
    errors = []
    for t in range(depth(process) + 1):
        error = 0.0
        for p, h in at_turn(process, t):
            below = at_turn(h, depth(process) - t)
            second_moment = sum(q * (value(z) ** 2 + value(z) * (1 - value(z)) / group) for q, z in below)
            error += p * (second_moment - value(h) ** 2)
        errors.append(error)
    assert sum(p for p, _ in last) == pytest.approx(1.0)
    assert (np.diff(errors) <= 1e-12).all()


@given(process=PROCESS)
def test_proposition_2_quadratic_variation_is_the_contrast_potential(process):
    for t in range(depth(process) + 1):
        for _, history in at_turn(process, t):
            v = value(history)
            assert quadratic_variation(history) == pytest.approx(v * (1 - v), abs=1e-12)


@given(
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    group=st.integers(2, 6),
    active=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_proposition_3_planned_roots_have_at_least_the_squared_gradient_of_uniform(rates, group, active, seed):
    """With equal gradient energy E_0, a group's expected squared gradient is E_0 times its chance of contrast."""
    rng = np.random.default_rng(seed)
    active = min(active, len(rates))
    belief = Belief.point(np.array(rates))
    uniform = np.zeros(len(rates), dtype=np.int64)
    uniform[rng.choice(len(rates), active, replace=False)] = group
    planned = plan_roots(belief, active * group, rng=rng)
    assert planned.sum() == uniform.sum()
    assert root_utility(belief, planned).sum() >= root_utility(belief, uniform).sum() - 1e-12


def test_proposition_2_by_simulation():
    rng = np.random.default_rng(0)
    process = [[0.9, [0.0, 1.0], 0.2], 0.1, [[0.5, 0.7], [1.0, 1.0, 0.3]]]
    sums = np.zeros(20_000)
    for i in range(len(sums)):
        history = process
        while isinstance(history, list):
            following = history[rng.integers(len(history))]
            sums[i] += (value(following) - value(history)) ** 2
            history = following
        sums[i] += (float(rng.random() < history) - history) ** 2
    v = value(process)
    assert sums.mean() == pytest.approx(v * (1 - v), abs=4 * sums.std() / np.sqrt(len(sums)))


def test_proposition_3_by_simulation():
    """Every prompt has its own parameter, every rollout a score (gradient of its log-probability) of variance 1.

    The group's gradient is sum_j A_j s_j / sqrt(m), so that its energy is 1 where the group has contrast, else 0.
    """
    rng = np.random.default_rng(1)
    rates = rng.beta(0.3, 0.3, 400)
    belief = Belief.point(rates)

    def squared_gradient(counts: np.ndarray) -> float:
        total = 0.0
        for rate, count in zip(rates[counts > 0], counts[counts > 0], strict=True):
            advantages = np.array([normalised((rng.random(count) < rate).astype(float)) for _ in range(20)])
            scores = rng.standard_normal((20, count))
            total += float((((advantages * scores).sum(axis=1) ** 2) / count).mean())
        return total

    uniform = np.zeros(400, dtype=np.int64)
    uniform[:100] = 8
    planned = plan_roots(belief, 800, rng=rng)
    assert squared_gradient(planned) == pytest.approx(root_utility(belief, planned).sum(), rel=0.1)
    assert squared_gradient(planned) > 1.5 * squared_gradient(uniform)
