"""Many histories in few forward passes: a rollout's prefixes are read off the pass over the rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from components.tree.trie import nested

FORWARD_TOKENS = 16384  # padded tokens in one forward pass


@dataclass(frozen=True)
class Pass:
    """Right-padded histories, and where in them others end. A causal model never attends to the padding.

    Attributes:
        tokens: Token ids (B, T).
        index_A: Which of the given histories are read off this pass.
        row_A, last_A: The row of each, and the position of its last token.
    """

    tokens: Tensor
    index_A: Tensor
    row_A: Tensor
    last_A: Tensor


def passes(histories: Sequence[list[int]], tokens: int = FORWARD_TOKENS) -> Iterator[Pass]:
    """Forward passes that together read every history once; a history that begins another one costs nothing.

    Args:
        histories: Token ids, none of them empty.
        tokens: Most padded tokens in one pass; a longer history stands alone.
    """
    batch: list[list[int]] = []
    # A group's first history is a row, the others end on the way. By length, so that little is padded.
    for group in sorted(nested(histories), key=lambda group: (len(histories[group[0]]), min(group))):
        if batch and (len(batch) + 1) * len(histories[group[0]]) > tokens:
            yield _pass(histories, batch)
            batch = []
        batch.append(group)
    if batch:
        yield _pass(histories, batch)


def _pass(histories: Sequence[list[int]], groups: list[list[int]]) -> Pass:
    padded = torch.zeros(len(groups), len(histories[groups[-1][0]]), dtype=torch.long)
    for row, group in enumerate(groups):
        padded[row, : len(histories[group[0]])] = torch.tensor(histories[group[0]])
    index = [i for group in groups for i in sorted(group)]
    row_A = torch.tensor([row for row, group in enumerate(groups) for _ in group])
    return Pass(padded, torch.tensor(index), row_A, torch.tensor([len(histories[i]) - 1 for i in index]))


def read(histories: Sequence[list[int]], width: int, at: Callable[[Pass], Tensor]) -> Tensor:
    """What `at` reads off each pass, (its A, width), in the order of the histories: (A, width)."""
    parts = [(each.index_A, at(each)) for each in passes(histories)]
    out = torch.empty(len(histories), width)
    return out.index_copy(0, torch.cat([i for i, _ in parts]), torch.cat([v for _, v in parts])) if parts else out
