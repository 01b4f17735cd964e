"""What several stages read: shared forests, and a pool that is scored in parts."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief
from components.storage import read_parquet
from components.tree.forest import join
from tasks import score as module
from tasks.inputs import read_forest, shared_forest, write_forest
from tasks.prepare import prepare_data
from tests.tasks.pipeline import new_run


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
        assert repr(shared_forest(path).nodes) == repr(read_forest(path).nodes)


def test_large_pool_is_scored_in_parts(params, data_dir, tmp_path, random_policy, monkeypatch):
    sizes: list[int] = []

    class Counting:
        """Believes in the length of a prompt, which a wrong order of the parts would mix up."""

        def predict(self, prefixes):
            sizes.append(len(prefixes))
            return Belief(np.array([1 / len(p.prompt.question) for p in prefixes]), np.arange(len(prefixes)) + 1.0)

    def scored(run_id: str):
        run = new_run(params, data_dir, tmp_path, run_id, allocation={"pool": 12})
        prepare_data.fn(run.path)
        output = module.score_prompts.fn(run.path, 0, policy=random_policy, predictor=None)
        return read_parquet(output, module.SCORED_SCHEMA)

    monkeypatch.setattr(module, "make_predictor", lambda *_: Counting())
    whole = scored("whole")
    monkeypatch.setattr(module, "CHUNK", 5)
    parts = scored("parts")
    assert sizes == [12, 5, 5, 2]
    assert parts.drop_columns("concentration").equals(whole.drop_columns("concentration"))
    assert parts["concentration"].to_pylist() == [*range(1, 6), *range(1, 6), 1, 2]
