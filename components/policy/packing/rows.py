"""Paths of trees in one sequence that holds every prefix they share once.

Rows in lexicographic order stand as a depth-first walk through their trie, in which each row adds only what it does not
share with the row before. Merging is exact wherever tokens agree: the hidden state at a token depends on the tokens up
to it alone, and what was sampled there keeps a term of its own for each row. It reaches across siblings that began with
the same tokens, and across trees whose prompts do.

In such a walk the tokens that see token j, its descendants, follow it without a gap, so one number for each token
is the whole mask: position i sees position j if and only if j <= i < end_T[j].
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, eq=False)
class Row:
    """One path of the forest as the model sees it; arrays of equal length.

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
    """Where rows stand in one sequence. The last token of a row is predicted, never read, so it has no place.

    Attributes:
        token_ids, position_T, end_T: Token, depth and end of the descendants of each position; int64 (T,).
        places: For each row, the positions of its tokens but the last.
    """

    token_ids: np.ndarray
    position_T: np.ndarray
    end_T: np.ndarray
    places: list[np.ndarray]


def layout(rows: list[Row]) -> Layout:
    """Lays rows out in their order; what a row shares with the one before it is not repeated."""
    end_T = np.full(sum(len(row.token_ids) - 1 for row in rows), np.iinfo(np.int64).max)
    ids: list[np.ndarray] = []
    depth: list[np.ndarray] = []
    places = [np.zeros(0, dtype=np.int64)]
    size, before = 0, np.zeros(0, dtype=np.int64)
    for row in rows:
        inputs = row.token_ids[:-1]
        shared = _common(before, inputs)
        end_T[places[-1][shared:]] = size
        places.append(np.concatenate([places[-1][:shared], np.arange(size, size + len(inputs) - shared)]))
        ids.append(inputs[shared:])
        depth.append(np.arange(shared, len(inputs)))
        size, before = size + len(inputs) - shared, inputs
    return Layout(np.concatenate(ids), np.concatenate(depth), np.minimum(end_T[:size], size), places[1:])


def split(rows: list[Row], limit: int) -> list[list[Row]]:
    """Parts of at most `limit` tokens each after packing, in lexicographic order; a longer row stands alone.

    Where a part is full, it is cut in its later half at the row that shares least with the one before it: between two
    trees if there are several, else between two branches, whose shared prefix then stands in both parts. A row belongs
    to one part, so the sum of the parts' gradients is the same.
    """
    rows = sorted(rows, key=lambda row: row.token_ids.astype(">i8").tobytes())
    length = [len(row.token_ids) - 1 for row in rows]
    shared = [0] + [_common(a.token_ids[:-1], b.token_ids[:-1]) for a, b in pairwise(rows)]
    parts: list[list[Row]] = []
    first = now = 0
    filled = [0]  # tokens of the open part before each of its rows
    while now < len(rows):
        size = filled[-1] + length[now] - (shared[now] if now > first else 0)
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


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common beginning."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
