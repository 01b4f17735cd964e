"""The prefix cache: what begins alike shares its slots, and what no longer fits is forgotten."""

from __future__ import annotations

import numpy as np
import torch

from components.policy.engines.transformers.prefix_cache import PrefixCache


def cache(capacity: int = 100) -> PrefixCache:
    return PrefixCache(layers=1, heads=1, dim=1, capacity=capacity, dtype=torch.float32)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def test_slots_follow_the_unique_tokens_of_random_trees():
    rng, kept = np.random.default_rng(0), cache(10_000)
    sequences = [rng.integers(0, 3, rng.integers(1, 12)) for _ in range(300)]
    slots = [kept.add(s)[0] for s in sequences]
    unique = {s[: i + 1].tobytes() for s in sequences for i in range(len(s))}
    assert kept.used == len(unique)
    slot_of = {
        s[: i + 1].tobytes(): int(own[i]) for s, own in zip(sequences, slots, strict=True) for i in range(len(s))
    }
    assert len(set(slot_of.values())) == len(unique)
    for s, own in zip(sequences, slots, strict=True):  # later insertions changed nothing
        again, known = kept.add(s)
        assert known == len(s)
        np.testing.assert_array_equal(again, own)


def test_tokens_whose_bytes_begin_alike_are_told_apart():
    kept = cache()
    kept.add(ids(1, 256))
    assert kept.add(ids(1, 512))[1] == 1
    assert kept.add(ids(257, 256))[1] == 0


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
