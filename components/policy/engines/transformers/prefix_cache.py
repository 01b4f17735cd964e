"""Keys and values of token sequences that were computed once, found by the longest common beginning.

Sequences share the slots of what they begin with, so the memory follows the unique tokens. Slots are handed out in
order. When they are used up, everything is forgotten at once: what is still needed is then computed once more, and no
order of eviction has to be kept.
"""

from __future__ import annotations

import numpy as np
import torch

from components.tree.trie import Trie


class PrefixCache(Trie):
    """A trie whose numbers are slots of a pool: write keys and values there after `add`, then `grow`.

    Args:
        layers, heads, dim: Of the model's keys and values.
        capacity: Tokens that are kept; a single batch that needs more gets more.
        dtype: Of keys and values.

    Attributes:
        pool: Keys and values by slot, (slots, 2, layers, heads, dim); `clear` leaves its memory.
    """

    def __init__(self, layers: int, heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.capacity = capacity
        self.pool = torch.zeros((0, 2, layers, heads, dim), dtype=dtype)

    def has_room(self, sequences: list[np.ndarray]) -> bool:
        """Whether the slots suffice for what is new of the sequences."""
        free = self.capacity - self.used
        return sum(map(len, sequences)) <= free or sum(len(s) - len(self.longest(s)) for s in sequences) <= free

    def grow(self) -> None:
        """Gives the pool the size that `add` asked for."""
        if self.used > len(self.pool):
            pool = self.pool.new_zeros((max(self.used, min(2 * self.used, self.capacity)), *self.pool.shape[1:]))
            pool[: len(self.pool)] = self.pool
            self.pool = pool
