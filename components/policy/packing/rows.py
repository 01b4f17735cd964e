"""Paths of trees in one sequence that holds every shared prefix once.

Rows in lexicographic order walk through their trie depth first: each row adds only what it does not share with the row
before. Merging is exact wherever tokens agree: the hidden state at a token depends only on the tokens up to it, and
each row keeps its own term for what was sampled there. So siblings that began with the same tokens are merged too, and
trees whose prompts did.

In such a walk the descendants of token j follow it without a gap, and they are the tokens that see it. So one number
per token is the whole mask: position i sees position j if and only if j <= i < end_T[j].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from components.tree.trie import overlaps


@dataclass(frozen=True, eq=False)
class Row:
    """One path of the forest as the model sees it. All arrays have its length.

    Attributes:
        token_ids: Token ids, int64.
        old_logprob: Log-probability that the importance ratio starts from; read only at trained tokens.
        advantage, weight: Advantage and weight in the loss; weight 0: the token is not trained.
        index_T: The token's place among all tokens of the forest; int64.
        leaf: Row of the leaf in the forest.
    """

    token_ids: np.ndarray
    old_logprob: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray
    index_T: np.ndarray
    leaf: int


@dataclass(frozen=True)
class Layout:
    """Where rows stand in one sequence. The last token of a row is predicted but never read, so it has no place.

    Attributes:
        token_ids, position_T, end_T: Token, depth and end of the descendants, by position; int64 (T,).
        places: For each row, the positions of its tokens but the last.
    """

    token_ids: np.ndarray
    position_T: np.ndarray
    end_T: np.ndarray
    places: list[np.ndarray]


def layout(rows: list[Row]) -> Layout:
    """Lays rows out in their order, each without its last token."""
    return walk([row.token_ids[:-1] for row in rows])


def walk(inputs: list[np.ndarray]) -> Layout:
    """Lays sequences out in their order; what one shares with the one before it is not repeated."""
    end_T = np.zeros(sum(map(len, inputs)), dtype=np.int64)
    ids: list[np.ndarray] = []
    depth: list[np.ndarray] = []
    places, size = [np.zeros(0, dtype=np.int64)], 0
    for row, shared in zip(inputs, overlaps(inputs), strict=True):
        end_T[places[-1][shared:]] = size  # here end tokens of the row before that this one does not go through
        places.append(np.concatenate([places[-1][:shared], np.arange(size, size + len(row) - shared)]))
        ids.append(row[shared:])
        depth.append(np.arange(shared, len(row)))
        size += len(row) - shared
    end_T[places[-1]] = size
    return Layout(np.concatenate(ids), np.concatenate(depth), end_T[:size].copy(), places[1:])


def split(rows: list[Row], limit: int) -> list[list[Row]]:
    """Parts of at most `limit` tokens each after packing, in lexicographic order; a longer row stands alone.

    A full part is cut in its later half, at the row that shares least with the one before it: between two trees if
    there are several, else between two branches, whose shared prefix then stands in both parts. Each row belongs to one
    part, so the parts' gradients sum to the same total.
    """
    rows = sorted(rows, key=lambda row: row.token_ids.astype(">i8").tobytes())  # big-endian bytes sort like integers
    inputs = [row.token_ids[:-1] for row in rows]
    shared = overlaps(inputs)
    parts: list[list[Row]] = []
    first = now = 0
    filled = [0]  # tokens of the open part before each of its rows
    while now < len(rows):
        size = filled[-1] + len(inputs[now]) - (shared[now] if now > first else 0)
        if now > first and size > limit:
            late = [cut for cut in range(first + 1, now + 1) if 2 * filled[cut - first] >= limit] or [now]
            cut = min(late, key=lambda row: (shared[row], -row))
            parts.append(rows[first:cut])
            first = now = cut
            filled = [0]
        else:
            filled.append(size)
            now += 1
    return [*parts, rows[first:]]
