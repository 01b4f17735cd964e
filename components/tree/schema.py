"""The forest's schema: one row per node, written with an explicit Arrow schema.

A node is one turn: the thought and action that the policy sampled, plus the observation that the environment returned.
The root node is the prompt. A node stores only its *delta*: concatenating the deltas from the root to a node gives the
exact token sequence that the policy saw and sampled. Text is derived from tokens, never the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa


class Origin(StrEnum):
    """Where a node comes from."""

    ROOT = "root"  # the prompt itself
    FACTUAL = "factual"  # a turn of a rollout sampled from the root
    COUNTERFACTUAL = "counterfactual"  # a turn of a continuation sampled later from a visited prefix


class StopReason(StrEnum):
    """Why a rollout ended at a terminal node."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    MALFORMED_ACTION = "malformed_action"
    TOOL_ERROR = "tool_error"


class Status(StrEnum):
    """Whether a node may be used. An infrastructure failure is never a wrong answer: its reward stays null."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"


@dataclass
class Node:
    """One turn of the forest.

    `token_ids`, `is_action` and `logprobs` have equal lengths (a `ValueError` names the node otherwise). In every node
    but the root the sampled tokens come first and the observation's tokens follow.
    """

    tree_id: int  # index of the tree in its file: one tree per active prompt
    prompt_id: str
    node_id: int  # unique in the forest, equal to the row number; parents come before children
    parent_id: int  # -1 at the root
    turn: int  # 0 at the root
    origin: str
    anchor_id: int = -1  # the node whose budget paid for this rollout; -1 at the root
    sibling: int = -1  # index of this rollout among those paid for at its anchor
    token_ids: list[int] = field(default_factory=list)
    is_action: list[bool] = field(default_factory=list)  # marks the sampled tokens: only these are trained on
    logprobs: list[float] = field(default_factory=list)  # under the sampling policy; NaN where nothing was sampled
    action: str | None = None
    observation: str | None = None  # what the environment returned; at the root the question; None at terminal nodes
    answer: str | None = None  # the final answer, the text that is scored; only at terminal nodes that gave one
    error: str | None = None  # why a rollout ended in a fault; only at terminal nodes whose status is not ok
    stop_reason: str | None = None  # set exactly at terminal nodes
    status: str = Status.OK
    reward: float | None = None  # only at terminal nodes with status ok; None is "not known", never 0
    v_hat: float | None = None  # predicted chance of success at this prefix, before its continuations were sampled
    concentration: float | None = (
        None  # alpha + beta of the Beta distribution with mean v_hat; inf or None: v_hat is a point
    )
    allocated: int = (
        0  # factual rollouts granted at a root before stage 2 (which may add more), continuations at a prefix
    )
    rule: str | None = None  # the rule that granted them
    value: float | None = None  # mean reward of the leaves below (Eq. 18)
    advantage: float | None = None  # the (mean) advantage that this node's action tokens carried in the update
    policy_version: int = 0  # updates behind the weights that sampled these tokens
    seed: int = 0  # seed of the request that sampled these tokens

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.is_action) == len(self.logprobs):
            raise ValueError(
                f"node {self.node_id} of tree {self.tree_id} (prompt {self.prompt_id}): token_ids, is_action and "
                f"logprobs have lengths {len(self.token_ids)}, {len(self.is_action)} and {len(self.logprobs)}; "
                "they must be equal"
            )

    @property
    def is_terminal(self) -> bool:
        """Whether a rollout ends here: the node is a leaf."""
        return self.stop_reason is not None


_CATEGORY = pa.dictionary(pa.int32(), pa.string())

NODE_SCHEMA = pa.schema(
    [
        pa.field("tree_id", pa.int32(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("node_id", pa.int32(), nullable=False),
        pa.field("parent_id", pa.int32(), nullable=False),
        pa.field("turn", pa.int16(), nullable=False),
        pa.field("origin", _CATEGORY, nullable=False),
        pa.field("anchor_id", pa.int32(), nullable=False),
        pa.field("sibling", pa.int32(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("is_action", pa.list_(pa.bool_()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("action", pa.string()),
        pa.field("observation", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("error", pa.string()),
        pa.field("stop_reason", _CATEGORY),
        pa.field("status", _CATEGORY, nullable=False),
        pa.field("reward", pa.float32()),
        pa.field("v_hat", pa.float32()),
        pa.field("concentration", pa.float32()),
        pa.field("allocated", pa.int32(), nullable=False),
        pa.field("rule", _CATEGORY),
        pa.field("value", pa.float32()),
        pa.field("advantage", pa.float32()),
        pa.field("policy_version", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
    ]
)

assert [f.name for f in fields(Node)] == NODE_SCHEMA.names, "Node and NODE_SCHEMA must list the same columns"


def nodes_to_table(nodes: list[Node]) -> pa.Table:
    """Converts nodes to an Arrow table with `NODE_SCHEMA`."""
    if not nodes:
        return NODE_SCHEMA.empty_table()
    columns = zip(*map(attrgetter(*NODE_SCHEMA.names), nodes), strict=True)
    return pa.table(list(map(_to_array, columns, NODE_SCHEMA.types)), schema=NODE_SCHEMA)


def with_columns(table: pa.Table, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """A table, some of its columns replaced; on disk it is to the byte what `nodes_to_table` would give."""
    for name, values in columns.items():
        kind = NODE_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, _to_array(values, kind.type))
    return pa.table(
        [column.cast(kind) for column, kind in zip(table.columns, NODE_SCHEMA.types, strict=True)], schema=NODE_SCHEMA
    )


def _to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind):
        return pa.array(values, type=kind)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = np.fromiter(chain.from_iterable(values), dtype=kind.value_type.to_pandas_dtype(), count=offsets[-1])
    return pa.ListArray.from_arrays(offsets, pa.array(flat), type=kind)  # several times as fast as from lists


def _to_list(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    lists = column.combine_chunks()
    flat, bounds = lists.values.to_pylist(), lists.offsets.to_pylist()  # `to_numpy` would import pandas
    return [flat[begin:end] for begin, end in pairwise(bounds)]


def table_to_nodes(table: pa.Table) -> list[Node]:
    """Converts an Arrow table with `NODE_SCHEMA` back to nodes.

    Raises:
        ValueError: if the columns or their types differ from `NODE_SCHEMA` (the message shows both).
    """
    if not table.schema.equals(NODE_SCHEMA):
        differing = [
            f"{name}: {table.schema.field(name).type if name in table.schema.names else 'missing'}"
            f" (expected {NODE_SCHEMA.field(name).type if name in NODE_SCHEMA.names else 'no such column'})"
            for name in dict.fromkeys([*NODE_SCHEMA.names, *table.schema.names])
            if name not in table.schema.names
            or name not in NODE_SCHEMA.names
            or table.schema.field(name).type != NODE_SCHEMA.field(name).type
        ]
        raise ValueError("not a forest: " + ("; ".join(differing) or "nullability of columns differs"))
    return [Node(*row) for row in zip(*map(_to_list, table.columns), strict=True)]
