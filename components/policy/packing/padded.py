"""Which sequences share a padded forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def groups(items: Iterable[T], length: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Consecutive items, as many as fit: their number times the largest length is at most `most`, or it is one item."""
    group: list[T] = []
    longest = 0
    for item in items:
        longest = max(longest, length(item))
        if group and (len(group) + 1) * longest > most:
            yield group
            group, longest = [], length(item)
        group.append(item)
    if group:
        yield group
