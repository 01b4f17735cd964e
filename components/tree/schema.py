"""The forest's schema: one row per node.

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
    concentration: float | None = None  # of the Beta distribution with mean v_hat; inf or None: v_hat is a point
    # Rollouts granted: at a root those of stage 1 (stage 2 may add more), at a prefix its continuations.
    allocated: int = 0
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
_TYPES = {
    "int": pa.int32(),
    "str": pa.string(),
    "str | None": pa.string(),
    "float | None": pa.float32(),
    "list[int]": pa.list_(pa.int32()),
    "list[bool]": pa.list_(pa.bool_()),
    "list[float]": pa.list_(pa.float32()),
}
_TYPES_BY_NAME = {"turn": pa.int16(), "seed": pa.int64()} | dict.fromkeys(
    ("origin", "stop_reason", "status", "rule"), _CATEGORY
)

NODE_SCHEMA = pa.schema(
    [
        pa.field(f.name, _TYPES_BY_NAME.get(f.name, _TYPES[str(f.type)]), nullable=f.default is None)
        for f in fields(Node)
    ]
)
"""The columns are the fields of `Node`, in their order; those that may be None are nullable."""


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
    """Converts a table back to nodes; a `ValueError` shows the columns and types that differ from `NODE_SCHEMA`."""
    if not table.schema.equals(NODE_SCHEMA):
        expected, found = ({f.name: str(f.type) for f in schema} for schema in (NODE_SCHEMA, table.schema))
        differing = [
            f"{name}: {found.get(name, 'missing')} (expected {expected.get(name, 'no such column')})"
            for name in expected | found
            if expected.get(name) != found.get(name)
        ]
        raise ValueError("not a forest: " + ("; ".join(differing) or "order or nullability of columns differs"))
    return [Node(*row) for row in zip(*map(_to_list, table.columns), strict=True)]
