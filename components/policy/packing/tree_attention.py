"""Attention in packed trees, as an attention implementation of `transformers`.

A token sees itself and its ancestors; `end_T` of `components.policy.packing` says who they are. On the CPU the queries
are taken in blocks, each over the keys that any of its queries sees and under its part of the mask; on CUDA
`flex_attention` skips the blocks of keys that no query sees. Without a tree it is the plain `sdpa`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "tree"
BLOCK = 128  # queries in one call on the CPU: fewer cost calls, more cost keys that few of them see
FLEX_BLOCK = 128  # queries, and keys, in one block of `flex_attention`


@dataclass(frozen=True)
class Blocks:
    """Blocks of queries, and for each the keys that it needs, of all layers alike.

    Attributes:
        queries, keys: Queries and keys of each block.
        key_index: The keys of all blocks, one block after the other; int64.
        masks: For each block 0 where a query sees a key and -inf elsewhere, (1, 1, queries, keys).
    """

    queries: list[int]
    keys: list[int]
    key_index: Tensor
    masks: list[Tensor]


def blocks(end_T: Tensor, dtype: torch.dtype) -> Blocks:
    """Cuts a packed sequence into blocks of queries."""
    end, position = end_T.numpy(), np.arange(len(end_T))
    queries = np.split(position, range(BLOCK, len(position), BLOCK))
    keys = [np.flatnonzero(end[: q[-1] + 1] > q[0]) for q in queries]
    masks = []
    for q, k in zip(queries, keys, strict=True):
        seen = torch.from_numpy((k <= q[:, None]) & (q[:, None] < end[k]))
        masks.append(torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, float("-inf"))[None, None])
    return Blocks([len(q) for q in queries], [len(k) for k in keys], torch.from_numpy(np.concatenate(keys)), masks)


def block_mask(end_T: Tensor) -> Any:
    """The same mask as a `BlockMask` of `flex_attention`, without ever holding a T by T matrix.

    A block of keys before a block of queries is needed if its last end lies behind the first query, and needed in full
    if its first end does not lie before the block's end.
    """
    from torch.nn.attention.flex_attention import BlockMask

    length = len(end_T)
    count = -(-length // FLEX_BLOCK)
    padded = torch.nn.functional.pad(end_T, (0, count * FLEX_BLOCK - length)).view(count, FLEX_BLOCK)
    begin = torch.arange(count, device=end_T.device)[:, None] * FLEX_BLOCK
    before = torch.ones(count, count, dtype=torch.bool, device=end_T.device).tril(-1)
    needed = before & (padded.amax(1)[None] > begin)
    full = needed & (padded.amin(1)[None] >= begin + FLEX_BLOCK)
    partial = (needed & ~full) | torch.eye(count, dtype=torch.bool, device=end_T.device)

    def ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Number of chosen blocks in each row, and the indices of all blocks, the chosen ones first."""
        index = torch.argsort(chosen.to(torch.int8), dim=1, descending=True, stable=True)
        return chosen.sum(1, dtype=torch.int32)[None, None], index.to(torch.int32)[None, None]

    def sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end_T[key])

    return BlockMask.from_kv_blocks(
        *ordered(partial), *ordered(full), BLOCK_SIZE=FLEX_BLOCK, mask_mod=sees, seq_lengths=(length, length)
    )


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, tree: Any = None, **kw: Any
) -> tuple[Tensor, Any]:
    """(1, heads, T, dim) to (1, T, heads, dim), as `transformers` asks; `tree`: what `tree_for` made, or None."""
    if tree is None:
        out: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **kw)
        return out
    if not isinstance(tree, Blocks):
        out = flex_attention_forward(module, query, key, value, tree, **kw)
        return out
    keys, values = (x.index_select(2, tree.key_index) for x in (key, value))
    parts = zip(
        torch.split(query, tree.queries, 2),
        torch.split(keys, tree.keys, 2),
        torch.split(values, tree.keys, 2),
        tree.masks,
        strict=True,
    )
    return torch.cat([sdpa_attention_forward(module, q, k, v, mask, **kw)[0] for q, k, v, mask in parts], 1), None


def tree_for(model: Any, end_T: Tensor) -> Any:
    """What a model's decoder is called with as `tree`, so that each token sees its ancestors alone.

    Raises:
        ValueError: if the model's attention cannot be replaced.
    """
    if model.config._attn_implementation != NAME:
        if not model._supports_attention_backend:
            raise ValueError(f"{type(model).__name__} has an attention of its own that cannot be replaced")
        model.set_attn_implementation(NAME)
    return blocks(end_T, model.dtype) if end_T.device.type == "cpu" else block_mask(end_T)


AttentionInterface.register(NAME, attention)
