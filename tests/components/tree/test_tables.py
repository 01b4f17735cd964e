"""Nodes go to a table and come back as they were."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from components.storage import read_parquet, write_parquet
from components.tree.schema import NODE_SCHEMA, Node, nodes_to_table, table_to_nodes, with_columns


def assert_same(found: list[Node], expected: list[Node]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name, a, b in zip(NODE_SCHEMA.names, astuple(one), astuple(other), strict=True):
            if name == "logprobs":
                np.testing.assert_array_equal(np.float32(a), np.float32(b))  # in which NaN equals NaN
            else:
                assert a == b, name


def test_nodes_come_back_whole_or_in_part(plant):
    nodes = plant([1, 0, [1, None]], [0, 0]).nodes
    nodes[0].v_hat, nodes[1].logprobs, nodes[2].action = 0.5, [float("nan")] * len(nodes[1].token_ids), "木 \x00"
    table = nodes_to_table(nodes)
    assert table.schema == NODE_SCHEMA
    assert_same(table_to_nodes(table), nodes)
    assert_same(table_to_nodes(table.slice(2, 4)), nodes[2:6])


def test_no_nodes_are_a_table_without_rows():
    assert table_to_nodes(nodes_to_table([])) == []


def test_table_with_new_columns_is_on_disk_what_its_nodes_would_be(plant, tmp_path):
    nodes = plant([1, 0, [1, None]], [0, 0]).nodes
    path, again = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_parquet(path, nodes_to_table(nodes))
    columns = {"status": ["timeout" for _ in nodes], "value": [None if n.is_terminal else 0.1 for n in nodes]}
    write_parquet(path, with_columns(read_parquet(path, NODE_SCHEMA), columns))
    for node in nodes:
        node.status, node.value = "timeout", None if node.is_terminal else 0.1
    write_parquet(again, nodes_to_table(nodes))
    assert path.read_bytes() == again.read_bytes()
