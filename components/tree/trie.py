"""What token sequences share: their common beginnings, which are stored, computed or counted once.

A trie needs no tree of nodes. In a sorted list, the sequence that shares most with a new one is a neighbour of the new
one's place, and those that extend a sequence follow right behind it. Any fixed order of the tokens will do, so `Trie`
compares sequences as bytes, which is fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

S = TypeVar("S", bytes, list[int])


class Trie:
    """A set of token sequences in which every distinct beginning has a number.

    Sequences are int64 (T,); the number of a token is that of the beginning that ends with it.

    Attributes:
        used: Numbers handed out so far: 0, 1, ... as new beginnings come.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets every sequence."""
        self._sorted: list[bytes] = []  # only sequences that no other one extends
        self._numbers: dict[bytes, np.ndarray] = {}
        self.used = 0

    def longest(self, sequence: np.ndarray) -> np.ndarray:
        """Numbers of the longest beginning of `sequence` in the set; int64, empty if there is none."""
        return self._find(sequence, sequence.tobytes())[1]

    def add(self, sequence: np.ndarray) -> tuple[np.ndarray, int]:
        """Adds a sequence. Returns its numbers, int64 (T,), and how many of them were there before: the first ones."""
        key = sequence.tobytes()
        at, known = self._find(sequence, key)
        if len(known) == len(sequence):
            return known, len(known)
        first, self.used = self.used, self.used + len(sequence) - len(known)
        numbers = self._numbers[key] = np.concatenate([known, np.arange(first, self.used)])
        if at and key.startswith(shorter := self._sorted[at - 1]):  # the longer one serves for both
            self._sorted[at - 1] = key
            del self._numbers[shorter]
        else:
            self._sorted.insert(at, key)
        return numbers, len(known)

    def _find(self, sequence: np.ndarray, key: bytes) -> tuple[int, np.ndarray]:
        """The place of a sequence in the sorted list, and its `longest`."""
        at, best, length = bisect_left(self._sorted, key), b"", 0
        if at < len(self._sorted) and self._sorted[at].startswith(key):  # all of it; faster than counting
            return at, self._numbers[self._sorted[at]][: len(sequence)]
        for near in self._sorted[max(0, at - 1) : at + 1]:
            if (shared := _common(np.frombuffer(near, np.int64), sequence)) > length:
                best, length = near, shared
        return at, self._numbers[best][:length] if length else np.zeros(0, dtype=np.int64)


def overlaps(sequences: Sequence[np.ndarray]) -> list[int]:
    """Tokens that each sequence shares with the one before it; 0 for the first one."""
    return [_common(a, b) for a, b in pairwise([np.zeros(0, dtype=np.int64), *sequences])]


def nested(sequences: Sequence[S]) -> list[list[int]]:
    """Groups the sequences (by index) under those that no other one extends.

    A group's first sequence extends all others of the group. Groups, and sequences in a group, stand in descending
    order, equal ones as they were given. A sequence that several groups could take belongs to the last of these.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(sequences)), key=sequences.__getitem__, reverse=True):
        here = sequences[index]
        if groups and sequences[groups[-1][0]][: len(here)] == here:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def merge(edges: Iterable[tuple[int, Hashable]]) -> list[int]:
    """For each node, the first one with the same labels up to the same unlabelled node: a trie with any labels.

    Args:
        edges: Parent and label of each node, parents before children. A node with the label None equals no other one.
    """
    first: list[int] = []
    known: dict[tuple[int, Hashable], int] = {}
    for node, (parent, label) in enumerate(edges):
        first.append(node if label is None else known.setdefault((first[parent], label), node))
    return first


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    at = (a[:length] != b[:length]).tobytes().find(1)
    return length if at < 0 else at
