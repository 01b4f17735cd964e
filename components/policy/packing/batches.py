"""From a forest and its terms to the tensors of forward passes.

Everything here is the same for all trainers: optimiser steps are parts of the terms by whole trees, and a step's
gradient is the sum over its batches. A batch is either flat, one padded row per path, or packed: the paths of trees in
one sequence that holds every shared prefix once (`components.policy.packing`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from components.errors import UserError
from components.policy.packing.padded import groups
from components.policy.packing.rows import Row, layout, split
from components.policy.trainers.base import UpdateParams
from components.tree.forest import Forest
from components.tree.terms import Terms


@dataclass(frozen=True)
class Batch:
    """One forward pass over B sequences of T positions, and the K terms of the loss: one per (token, leaf).

    Terms that mean the same token at the same place share one of the Q predictions. The terms of one path follow each
    other, in the order of its tokens.

    Attributes:
        input_ids: Token ids, int64 (B, T).
        predictor_Q: Position, counted through all rows, whose output predicts the token: the one before it on its
            path; int64.
        target_Q: The token that was sampled; int64.
        prediction_K: Prediction of each term; int64.
        path_K: Path of each term, counted within the batch; int64.
        token_K: The term's token among all tokens of the forest; int64.
        old_logprob_K: Log-probability that the importance ratio starts from; float32.
        advantage_K, weight_K: Advantage, and weight in the loss; float32.
        position_ids: Depth of each token on its path, int64 (1, T); None in a flat batch, where it is the column.
        end_T: Where the tokens that see a token end, int64: position i sees position j if and only if
            j <= i < end_T[j]; None in a flat batch, where every token sees those before it.
    """

    input_ids: Tensor
    predictor_Q: Tensor
    target_Q: Tensor
    prediction_K: Tensor
    path_K: Tensor
    token_K: Tensor
    old_logprob_K: Tensor
    advantage_K: Tensor
    weight_K: Tensor
    position_ids: Tensor | None = None
    end_T: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        tensors: dict[str, Any] = {name: x for name, x in vars(self).items() if x is not None}
        return Batch(**{name: x.to(device) for name, x in tensors.items()})


@dataclass(frozen=True)
class Proximal:
    """The policy that an update starts from, as the trainer sees it. Axis `_T`: all tokens of the forest.

    Attributes:
        logprob_T: The trainer's log-probability of each trained token; float64.
        weight_T: What the token's weight in the loss is multiplied by, above 0; float64.
    """

    logprob_T: np.ndarray
    weight_T: np.ndarray


def minibatches(forest: Forest, terms: Terms, parts: int, rng: np.random.Generator) -> list[Terms]:
    """Splits the terms by whole trees into at most `parts` parts, each with weights that sum to 1."""
    tree_K = forest.tree_N[terms.leaf_K]
    trees = rng.permutation(np.unique(tree_K))
    chosen = [np.isin(tree_K, part) for part in np.array_split(trees, min(parts, max(1, len(trees)))) if len(part)]
    return [_restrict(forest, terms, rows) for rows in chosen]


def micro_batches(
    forest: Forest, terms: Terms, settings: UpdateParams, proximal: Proximal | None = None
) -> list[Batch]:
    """The forward passes of one optimiser step: packed trees, or padded rows if `settings.packing` is flat.

    Needs at least one term. `proximal`: where importance ratios start from instead of the engine's log-probabilities.

    Raises:
        UserError: if a path is longer than `settings.max_path_tokens`.
    """
    rows = build_rows(forest, terms, proximal)
    longest = max(rows, key=lambda row: len(row.token_ids))
    if settings.max_path_tokens is not None and len(longest.token_ids) > settings.max_path_tokens:
        raise UserError(
            f"the path to node {longest.leaf} has {len(longest.token_ids)} tokens up to its last trained one, "
            f"more than update.max_path_tokens={settings.max_path_tokens}"
        )
    if settings.packing != "flat":
        return [pack(part) for part in split(rows, settings.micro_batch_tokens)]
    rows.sort(key=lambda row: len(row.token_ids))  # similar lengths together: little padding
    return [collate(part) for part in groups(rows, lambda row: len(row.token_ids), settings.micro_batch_tokens)]


def build_rows(forest: Forest, terms: Terms, proximal: Proximal | None = None) -> list[Row]:
    """One row per leaf that has terms: its path up to the last trained token, each term at its node's action tokens."""
    by_leaf: dict[int, dict[int, tuple[float, float]]] = {}
    columns = (terms.leaf_K, terms.node_K, terms.advantage_K, terms.weight_K)
    for leaf, node, advantage, weight in zip(*(column.tolist() for column in columns), strict=True):
        by_leaf.setdefault(leaf, {})[node] = (advantage, weight)
    old_T = forest.logprob_T if proximal is None else proximal.logprob_T
    rows = []
    for leaf, by_node in by_leaf.items():
        path = forest.path(leaf)
        index_T = np.concatenate([np.arange(forest.tokens_N[n]) + forest.first_N[n] for n in path])
        # what a node has, each of its tokens has; observations and the prompt are not trained
        advantage, weight = np.array([by_node.get(n, (0.0, 0.0)) for n in path]).repeat(forest.tokens_N[path], axis=0).T
        weight = np.where(forest.is_action_T[index_T], weight, 0.0)
        end = int(np.flatnonzero(weight)[-1]) + 1  # nothing is computed behind the last trained token
        index_T, advantage, weight = index_T[:end], advantage[:end], weight[:end]
        if proximal is not None:  # NaN where nothing is trained must not come in by 0 * NaN
            weight = np.where(weight > 0, weight * proximal.weight_T[index_T], 0.0)
        rows.append(Row(forest.token_ids_T[index_T], old_T[index_T], advantage, weight, index_T, leaf))
    return rows


def collate(rows: list[Row]) -> Batch:
    """A flat batch. Padding stands on the right, where a causal model never attends to."""
    width = max(len(row.token_ids) for row in rows) - 1
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    places = []
    for number, row in enumerate(rows):
        input_ids[number, : len(row.token_ids) - 1] = row.token_ids[:-1]
        places.append(number * width + np.arange(len(row.token_ids) - 1))
    return _batch(rows, places, input_ids)


def pack(rows: list[Row]) -> Batch:
    """One sequence with every prefix that rows share laid out once, in the order of `split`."""
    packed = layout(rows)
    return replace(
        _batch(rows, packed.places, packed.token_ids[None]),
        position_ids=torch.from_numpy(packed.position_T)[None],
        end_T=torch.from_numpy(packed.end_T),
    )


def no_terms() -> Batch:
    """A batch that adds nothing to the loss, whose graph still goes through every layer."""
    none, nothing = torch.zeros(0, dtype=torch.long), torch.zeros(0)
    return Batch(torch.zeros(1, 1, dtype=torch.long), none, none, none, none, none, nothing, nothing, nothing)


def _batch(rows: list[Row], places: list[np.ndarray], input_ids: np.ndarray) -> Batch:
    """The terms of rows whose tokens, but for the last, stand at `places` among the inputs.

    A row's last token is only ever predicted, and its first one never: nothing stands before it.
    """
    columns = [np.flatnonzero(row.weight) for row in rows]

    def gather(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([getattr(row, name)[c] for row, c in zip(rows, columns, strict=True)]).astype(dtype)

    if any(c[0] == 0 for c in columns):
        raise ValueError("the first token of a path was sampled without a prompt before it and cannot be scored")
    # A token is predicted at the place of the one before it on its own path: for the first token of a branch, that is
    # the last one of the shared prefix. The same token at the same place is one prediction for all terms that mean it.
    before_K = np.concatenate([place[c - 1] for place, c in zip(places, columns, strict=True)])
    target_K = gather("token_ids", np.int64)
    pair_K = before_K * (target_K.max() + 1) + target_K  # one number for (place, token)
    _, first_Q, prediction_K = np.unique(pair_K, return_index=True, return_inverse=True)
    arrays = {
        "input_ids": input_ids,
        "predictor_Q": before_K[first_Q],
        "target_Q": target_K[first_Q],
        "prediction_K": prediction_K,
        "path_K": np.repeat(np.arange(len(rows)), [len(c) for c in columns]),
        "token_K": gather("index_T", np.int64),
        "old_logprob_K": gather("old_logprob", np.float32),
        "advantage_K": gather("advantage", np.float32),
        "weight_K": gather("weight", np.float32),
    }
    if not np.isfinite(arrays["old_logprob_K"]).all():  # an infinite one would be clipped away without a word
        raise FloatingPointError("the log-probabilities of the sampled tokens are not finite")
    return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _restrict(forest: Forest, terms: Terms, rows_K: np.ndarray) -> Terms:
    """Some of the terms, with weights that sum to 1 over their tokens again."""
    node_K, weight_K = terms.node_K[rows_K], terms.weight_K[rows_K]
    weight_K = weight_K / (weight_K @ forest.action_tokens_N[node_K])
    return replace(
        terms, leaf_K=terms.leaf_K[rows_K], node_K=node_K, advantage_K=terms.advantage_K[rows_K], weight_K=weight_K
    )
