"""Forests that several stages read."""

from __future__ import annotations

from components.tree.forest import join
from tasks.inputs import read_forest, shared_forest, write_forest


def test_shared_forest_is_read_once_until_its_file_changes(finished, tmp_path):
    path = tmp_path / "forest.parquet"
    forest = read_forest(finished.iteration(0) / "forest.parquet")
    write_forest(path, forest)
    first = shared_forest(path)
    assert shared_forest(path) is first
    write_forest(path, join([forest, forest]))
    assert len(shared_forest(path)) == 2 * len(first)


def test_stages_leave_a_shared_forest_as_its_file_has_it(finished):
    for name in ("verified.parquet", "forest.parquet"):
        path = finished.iteration(0) / name
        shared, own = shared_forest(path), read_forest(path)
        assert [(n.value, n.advantage, n.v_hat, n.reward) for n in shared.nodes] == [
            (n.value, n.advantage, n.v_hat, n.reward) for n in own.nodes
        ]
