"""Taking the largest gains: against sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from components.allocation.threshold import spread, take_largest

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3), st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.1, 0.2, 0.2500001, 0.25, 1.0]), max_size=6)
    ),
    max_size=12,
)


@given(rows=ROWS, budgets=st.lists(st.integers(0, 20), min_size=4, max_size=4))
def test_takes_what_sorting_takes(rows, budgets):
    gains = [sorted(g, reverse=True) for _, g in rows]
    table = np.zeros((len(rows), 7))
    for i, g in enumerate(gains):
        table[i, : len(g)] = g
    segment = np.array([s for s, _ in rows], dtype=np.int64)
    limit = np.array([len(g) for g in gains], dtype=np.int64)
    budget = np.array(budgets, dtype=np.int64)
    taken, tied = take_largest(lambda r, k: table[r, k - 1], limit, segment, budget)
    for s in range(4):
        mine = np.flatnonzero(segment == s)
        everything = sorted((g for i in mine for g in gains[i]), reverse=True)
        best = everything[: budget[s]]
        assert taken[mine].sum() <= budget[s]
        assert (taken + tied)[mine].sum() >= len(best)
        got = [g for i in mine for g in gains[i][: taken[i]]]
        rest = [g for i in mine for g in gains[i][taken[i] : taken[i] + tied[i]]]
        assert len(set(rest)) <= 1
        assert sorted(got + rest[: len(best) - len(got)], reverse=True) == best


@given(
    room=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=10),
    amounts=st.lists(st.integers(0, 30), min_size=3, max_size=3),
    seed=st.integers(0, 9),
)
def test_spread_deals_evenly(room, amounts, seed):
    segment = np.array([s for s, _ in room], dtype=np.int64)
    room_A = np.array([r for _, r in room], dtype=np.int64)
    amount = np.array(amounts, dtype=np.int64)
    dealt = spread(room_A, segment, amount, np.random.default_rng(seed))
    assert ((dealt >= 0) & (dealt <= room_A)).all()
    for s in range(3):
        mine = segment == s
        assert dealt[mine].sum() == min(amount[s], room_A[mine].sum())
        unfilled = dealt[mine & (dealt < room_A)]
        if len(unfilled):
            assert dealt[mine].max() <= unfilled.min() + 1
