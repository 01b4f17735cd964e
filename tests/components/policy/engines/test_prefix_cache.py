"""The prefix cache: a trie (tests/components/tree/test_trie.py) with a pool that grows and is forgotten when full."""

from __future__ import annotations

import numpy as np
import torch

from components.policy.engines.transformers.prefix_cache import PrefixCache


def cache(capacity: int = 100) -> PrefixCache:
    return PrefixCache(layers=1, heads=1, dim=1, capacity=capacity, dtype=torch.float32)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def test_room_counts_what_is_shared_and_clearing_forgets():
    kept = cache(capacity=6)
    kept.add(ids(1, 2, 3, 4, 5))
    assert kept.has_room([ids(1, 2, 3, 4, 9)])
    assert not kept.has_room([ids(7, 8)])
    kept.clear()
    assert kept.add(ids(1, 2))[1] == 0


def test_growing_keeps_what_was_written():
    kept = cache()
    slots, _ = kept.add(ids(1, 2))
    kept.grow()
    kept.pool[slots] = 3.0
    kept.add(ids(*range(5, 50)))
    kept.grow()
    assert (kept.pool[slots] == 3.0).all()
