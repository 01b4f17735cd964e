"""From a forest and its terms to the tensors of forward passes.

Everything here is the same for all trainers: optimiser steps are parts of the terms by whole trees, and a step's
gradient is the sum over its batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from components.config import UpdateParams
from components.tree.advantages import Credit
from components.tree.forest import Forest


@dataclass
class Row:
    """One path of the forest as the model sees it; lists of equal length. Weight 0: the token is not trained."""

    token_ids: list[int]
    old_logprob: list[float]
    advantage: list[float]
    weight: list[float]


@dataclass(frozen=True)
class Batch:
    """One forward pass over B sequences of T positions, and the K terms of the loss: one per (token, leaf).

    Terms that mean the same token at the same place share one of the Q predictions.

    Attributes:
        input_ids: Token ids, int64 (B, T).
        predictor_Q: Position, counted through all rows, whose output predicts the token: the one before it on its
            path; int64.
        target_Q: The token that was sampled; int64.
        prediction_K: Prediction of each term; int64.
        old_logprob_K: The sampling policy's log-probability; float32.
        advantage_K, weight_K: Advantage, and weight in the loss; float32.
    """

    input_ids: Tensor
    predictor_Q: Tensor
    target_Q: Tensor
    prediction_K: Tensor
    old_logprob_K: Tensor
    advantage_K: Tensor
    weight_K: Tensor

    def to(self, device: torch.device | str) -> Batch:
        return Batch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def minibatches(forest: Forest, terms: Credit, parts: int, rng: np.random.Generator) -> list[Credit]:
    """Splits the terms by whole trees into at most `parts` parts, each with weights that sum to 1."""
    tree_K = forest.tree_N[terms.leaf_K]
    trees = rng.permutation(np.unique(tree_K))
    chosen = [np.isin(tree_K, part) for part in np.array_split(trees, min(parts, max(1, len(trees)))) if len(part)]
    return [_restrict(forest, terms, rows) for rows in chosen]


def micro_batches(forest: Forest, terms: Credit, settings: UpdateParams) -> list[Batch]:
    """The forward passes of one optimiser step, each within `settings.micro_batch_tokens` padded tokens.

    Rows of similar length stand together; a row that is longer than the limit stands alone.
    """
    batches: list[list[Row]] = []
    for row in sorted(build_rows(forest, terms), key=lambda r: len(r.token_ids)):
        if batches and (len(batches[-1]) + 1) * len(row.token_ids) <= settings.micro_batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [collate(rows) for rows in batches]


def build_rows(forest: Forest, terms: Credit) -> list[Row]:
    """One row per leaf that has terms: its path up to the last trained token, each term at its node's action tokens."""
    by_leaf: dict[int, dict[int, tuple[float, float]]] = {}
    for leaf, node, advantage, weight in zip(
        terms.leaf_K, terms.node_K, terms.advantage_K, terms.weight_K, strict=True
    ):
        by_leaf.setdefault(int(leaf), {})[int(node)] = (float(advantage), float(weight))
    rows = []
    for leaf, by_node in by_leaf.items():
        row, end = Row([], [], [], []), 0
        for index in forest.path(leaf):
            node = forest.nodes[index]
            advantage, weight = by_node.get(index, (0.0, 0.0))
            row.token_ids += node.token_ids
            row.old_logprob += [x if a else 0.0 for x, a in zip(node.logprobs, node.is_action, strict=True)]
            row.advantage += [advantage if a else 0.0 for a in node.is_action]
            row.weight += [weight if a else 0.0 for a in node.is_action]
            end = len(row.token_ids) if weight else end
        rows.append(Row(row.token_ids[:end], row.old_logprob[:end], row.advantage[:end], row.weight[:end]))
    return rows


def collate(rows: list[Row]) -> Batch:
    """Rows padded on the right, where a causal model never attends to. The first token of a row is never trained."""
    width = max(len(row.token_ids) for row in rows)

    def pad(lists: list[list[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([values + [0] * (width - len(values)) for values in lists], dtype=dtype)

    tokens = pad([r.token_ids for r in rows], torch.long)
    old_logprob, advantage, weight = (
        pad([getattr(r, name) for r in rows], torch.float32) for name in ("old_logprob", "advantage", "weight")
    )
    row, column = torch.nonzero(weight, as_tuple=True)
    return Batch(
        input_ids=tokens,
        predictor_Q=row * width + column - 1,
        target_Q=tokens[row, column],
        prediction_K=torch.arange(len(row)),
        old_logprob_K=old_logprob[row, column],
        advantage_K=advantage[row, column],
        weight_K=weight[row, column],
    )


def _restrict(forest: Forest, terms: Credit, rows_K: np.ndarray) -> Credit:
    """Some of the terms, with weights that sum to 1 over their tokens again."""
    node_K, weight_K = terms.node_K[rows_K], terms.weight_K[rows_K]
    weight_K = weight_K / (weight_K @ forest.action_tokens_N[node_K])
    return replace(
        terms, leaf_K=terms.leaf_K[rows_K], node_K=node_K, advantage_K=terms.advantage_K[rows_K], weight_K=weight_K
    )
