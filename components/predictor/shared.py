"""Many histories in few forward passes: the prefixes of a rollout are read off the pass over the rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FORWARD_TOKENS = 16384  # padded tokens in one forward pass


@dataclass(frozen=True)
class Pass:
    """Right-padded histories and where in them others end. Padding is never attended to by a causal model.

    Attributes:
        tokens: Token ids (B, T).
        index_N: Which of the given histories are read off this pass.
        row_N, last_N: The row of each, and the position of its last token.
    """

    tokens: Tensor
    index_N: Tensor
    row_N: Tensor
    last_N: Tensor


def passes(histories: Sequence[list[int]], tokens: int = FORWARD_TOKENS) -> Iterator[Pass]:
    """Forward passes that together read every history once; one that another begins with costs nothing.

    Args:
        histories: Token ids, none of them empty.
        tokens: Padded tokens in one pass; a longer history stands alone.
    """
    order = sorted(range(len(histories)), key=lambda i: histories[i])
    host = list(range(len(histories)))  # in sorted order a prefix stands right before what extends it
    for here, after in zip(reversed(order[:-1]), reversed(order[1:]), strict=True):
        if histories[after][: len(histories[here])] == histories[here]:
            host[here] = host[after]
    guests: dict[int, list[int]] = {}
    for index, owner in enumerate(host):
        guests.setdefault(owner, []).append(index)
    batch: list[int] = []
    for owner in sorted(guests, key=lambda i: len(histories[i])):
        if batch and (len(batch) + 1) * len(histories[owner]) > tokens:
            yield _pass(histories, batch, guests)
            batch = []
        batch.append(owner)
    if batch:
        yield _pass(histories, batch, guests)


def _pass(histories: Sequence[list[int]], owners: list[int], guests: dict[int, list[int]]) -> Pass:
    padded = torch.zeros(len(owners), len(histories[owners[-1]]), dtype=torch.long)
    for row, owner in enumerate(owners):
        padded[row, : len(histories[owner])] = torch.tensor(histories[owner])
    index = [guest for owner in owners for guest in guests[owner]]
    row_N = torch.tensor([row for row, owner in enumerate(owners) for _ in guests[owner]])
    return Pass(padded, torch.tensor(index), row_N, torch.tensor([len(histories[i]) - 1 for i in index]))


def read(histories: Sequence[list[int]], width: int, at: Callable[[Pass], Tensor]) -> Tensor:
    """What `at` reads off each pass, (its N, width), in the order of the histories: (N, width)."""
    parts = [(each.index_N, at(each)) for each in passes(histories)]
    out = torch.empty(len(histories), width)
    return out.index_copy(0, torch.cat([i for i, _ in parts]), torch.cat([v for _, v in parts])) if parts else out
