"""Keys and values of token sequences that were computed once, found by the longest common beginning.

The sequences stand in a sorted list, so the one that begins most like a new one stands next to where that would be.
Each has the slots of a pool where its tokens' keys and values lie, and sequences share the slots of what they begin
with: the memory follows the unique tokens. Slots are handed out in order. When they are used up everything is forgotten
at once: what is still needed is then computed once more, and there is no order of eviction to keep.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import torch

TOKEN = 8  # bytes of a token id: sequences are kept and compared as bytes


class PrefixCache:
    """See the module's text.

    Args:
        layers, heads, dim: Of the model's keys and values.
        capacity: Tokens that are kept; a single batch that needs more gets more.
        dtype: Of keys and values.

    Attributes:
        pool: Keys and values by slot, (slots, 2, layers, heads, dim).
        used: Slots handed out so far.
    """

    def __init__(self, layers: int, heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
        self.capacity = capacity
        self.pool = torch.zeros((0, 2, layers, heads, dim), dtype=dtype)
        self.clear()

    def clear(self) -> None:
        """Forgets every sequence; the pool's memory stays."""
        self._sequences: list[bytes] = []
        self._slots: dict[bytes, np.ndarray] = {}
        self.used = 0

    def has_room(self, sequences: list[np.ndarray]) -> bool:
        """Whether the slots suffice for what is new of the sequences."""
        free = self.capacity - self.used
        return (
            sum(map(len, sequences)) <= free or sum(len(s) - len(self._known(s.tobytes())) for s in sequences) <= free
        )

    def add(self, sequence: np.ndarray) -> tuple[np.ndarray, int]:
        """Slots of a sequence of token ids, int64 (T,), and how many of them from the first on it shares.

        The others are new: the caller writes their keys and values to `pool`, after `grow`.
        """
        ids = sequence.tobytes()
        known = self._known(ids)
        if len(known) == len(sequence):
            return known, len(known)
        first, self.used = self.used, self.used + len(sequence) - len(known)
        slots = self._slots[ids] = np.concatenate([known, np.arange(first, self.used)])
        at = bisect_left(self._sequences, ids)
        if at and ids.startswith(shorter := self._sequences[at - 1]):  # the longer one stands for both
            self._sequences[at - 1] = ids
            del self._slots[shorter]
        else:
            self._sequences.insert(at, ids)
        return slots, len(known)

    def grow(self) -> None:
        """Gives the pool the size that `add` asked for."""
        if self.used > len(self.pool):
            pool = self.pool.new_zeros((max(self.used, min(2 * self.used, self.capacity)), *self.pool.shape[1:]))
            pool[: len(self.pool)] = self.pool
            self.pool = pool

    def _known(self, ids: bytes) -> np.ndarray:
        """Slots of the longest beginning that is there."""
        at, best, length = bisect_left(self._sequences, ids), b"", 0
        for near in self._sequences[max(0, at - 1) : at + 1]:
            if (shared := _common(near, ids)) > length:
                best, length = near, shared
        return self._slots[best][:length] if length else np.zeros(0, dtype=np.int64)


def _common(a: bytes, b: bytes) -> int:
    """Tokens that two sequences begin with alike."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length // TOKEN
    differs = np.frombuffer(a, np.int64, length // TOKEN) != np.frombuffer(b, np.int64, length // TOKEN)
    return int(differs.argmax())
