"""Keys and values while a model runs: of rows that are computed (`RowCache`) or sampled (`BranchCache`).

Rows that branch from one history read its keys and values from one place, in one product for all their queries. A row
owns only what it sampled itself, so a step reads memory in proportion to the unique tokens. The scores of both parts go
through one softmax: this is plain attention, summed in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import sdpa_mask

from components.policy.engines.transformers.prefix_cache import PrefixCache
from components.policy.packing.tree_attention import attention as packed
from components.tree.trie import nested

NAME = "branches"  # for `set_attn_implementation`; packed trees, or plain SDPA, where no branches are passed


class RowCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of B rows by T positions, written at each row's own position.

    Args:
        cache: Where each row's first positions are read.
        slots: Their slots there.
        length: T.
    """

    def __init__(self, cache: PrefixCache, slots: Sequence[np.ndarray], length: int) -> None:
        self.layers: list[Any] = []  # the parent's; not used
        self.kv = _gather(cache, slots, length)
        self.row_index = torch.arange(len(slots))[:, None]
        self.position: Tensor = torch.zeros(len(slots), 1, dtype=torch.long)
        self.visible = length

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes (B, heads, W, dim) at `position` (B, W) and returns the first `visible` positions of the layer."""
        keys, values = self.kv[0, layer_idx], self.kv[1, layer_idx]
        keys[self.row_index, :, self.position] = key.transpose(1, 2)
        values[self.row_index, :, self.position] = value.transpose(1, 2)
        return keys[:, :, : self.visible], values[:, :, : self.visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.visible


class BranchCache(Cache):  # type: ignore[misc]
    """Keys and values of B rows in two parts: the history, which rows share, and each row's own sampled positions.

    Args:
        cache: Where the shared part is read.
        slots: Of each row's history there. A row whose history begins another row's reads that one's (its host's).
        steps: Positions of the own part.
    """

    def __init__(self, cache: PrefixCache, slots: Sequence[np.ndarray], steps: int) -> None:
        self.layers: list[Any] = []  # the parent's; not used
        self.cache, self.slots, self.step = cache, list(slots), 0
        _, pair, layers, heads, dim = cache.pool.shape
        self.own = cache.pool.new_zeros((pair, layers, len(slots), heads, steps, dim))
        self._share()

    def keep(self, rows: np.ndarray) -> None:
        """Drops all other rows."""
        self.slots = [self.slots[row] for row in rows.tolist()]
        self.own = self.own[:, :, torch.from_numpy(rows)]
        self._share()

    def _share(self) -> None:
        """Arranges rows in groups of R; the rows of a group read one row of the shared part, that of its host."""
        branches = nested([s.tobytes() for s in self.slots])

        def cost(size: int) -> float:  # of each group: reading the shared part, and multiplying with R rows
            return sum(-(-len(rows) // size) for rows in branches) * (1 + size / 4)

        size = min((1, 2, 4, 8, 16), key=cost)
        groups = [(rows[0], rows[at : at + size]) for rows in branches for at in range(0, len(rows), size)]
        self.shared = _gather(self.cache, [self.slots[host] for host, _ in groups], max(map(len, self.slots)))
        # A batched product needs groups of one size: a short one repeats a row, and nobody reads the repeated results.
        self.rows_GR = torch.tensor([rows + rows[:1] * (size - len(rows)) for _, rows in groups])
        place = {row: i * size + j for i, (_, rows) in enumerate(groups) for j, row in enumerate(rows)}
        self.place_B = torch.tensor([place[row] for row in range(len(self.slots))])
        # A row whose history ends inside its host's must not see the rest of it, nor the padding.
        length = torch.tensor([len(s) for s in self.slots])[:, None]
        hidden = torch.arange(self.shared.shape[4]) >= length
        self.mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes (B, heads, 1, dim) at `step`."""
        self.own[0, layer_idx, :, :, self.step] = key[:, :, 0]
        self.own[1, layer_idx, :, :, self.step] = value[:, :, 0]
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.step

    def attend(self, query: Tensor, layer: int, scaling: float) -> Tensor:
        """Attention of one query a row, (B, query heads, 1, dim), over both parts: (B, 1, query heads, dim)."""
        rows, query_heads, _, dim = query.shape
        heads, length, size = self.shared.shape[3], self.shared.shape[4], self.rows_GR.shape[1]
        per_head = query_heads // heads
        (keys, values), (own_keys, own_values) = self.shared[:, layer], self.own[:, layer, :, :, : self.step + 1]

        # The queries of a group are stacked into one matrix, so its shared keys and values are read once, not R times.
        def grouped(x: Tensor) -> Tensor:  # (B, heads, per head, X) -> (G, heads, R per head, X)
            return x[self.rows_GR].transpose(1, 2).reshape(len(keys), heads, size * per_head, -1)

        def alone(x: Tensor) -> Tensor:  # and back
            apart = x.view(len(keys), heads, size, per_head, x.shape[-1]).transpose(1, 2)
            return apart.reshape(-1, heads, per_head, x.shape[-1])[self.place_B]

        query = (query * scaling).view(rows, heads, per_head, dim)
        before = alone(grouped(query) @ keys.transpose(2, 3)) + self.mask
        weight = torch.cat([before, query @ own_keys.transpose(2, 3)], dim=-1).softmax(-1)
        out = alone(grouped(weight[..., :length]) @ values) + weight[..., length:] @ own_values
        result: Tensor = out.view(rows, 1, query_heads, dim)
        return result


def save(cache: PrefixCache, kv: Tensor, runs: list[tuple[int, int, np.ndarray]]) -> None:
    """Writes runs of positions of `kv`, each given by its row, its first position and its slots, to the pool."""
    if runs:
        row = np.concatenate([np.full(len(slots), row) for row, _, slots in runs])
        position = np.concatenate([begin + np.arange(len(slots)) for _, begin, slots in runs])
        cache.grow()
        slots = torch.from_numpy(np.concatenate([slots for _, _, slots in runs]))
        cache.pool[slots] = kv[:, :, torch.from_numpy(row), :, torch.from_numpy(position)]


def _gather(cache: PrefixCache, slots: Sequence[np.ndarray], length: int) -> Tensor:
    """Keys and values of sequences, padded with zeros: (2, layers, B, heads, length, dim)."""
    _, pair, layers, heads, dim = cache.pool.shape
    kv = cache.pool.new_zeros((pair, layers, len(slots), heads, length, dim))
    if width := max(map(len, slots)):
        index = torch.zeros((len(slots), width), dtype=torch.long)
        for row, own in enumerate(slots):
            index[row, : len(own)] = torch.from_numpy(own)
        kv[..., :width, :] = cache.pool[index].permute(2, 3, 0, 4, 1, 5)
    return kv


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    branches = kwargs.pop("branches", None)
    if branches is None:
        return packed(module, query, key, value, mask, **kwargs)
    return branches.attend(query, module.layer_idx, kwargs["scaling"]), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
