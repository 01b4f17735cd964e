"""Scoring a pool."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief
from components.storage import read_parquet
from tasks import score as module
from tasks.prepare import prepare_data
from tests.tasks.pipeline import new_run


def test_large_pool_is_scored_in_parts(params, data_dir, tmp_path, random_policy, monkeypatch):
    def scored(run_id: str):
        run = new_run(params, data_dir, tmp_path, run_id, allocation={"pool": 12})
        prepare_data.fn(run.path)
        output = module.score_prompts.fn(run.path, 0, policy=random_policy, predictor=None)
        return read_parquet(output, module.SCORED_SCHEMA)

    class Counting:
        """Believes in the length of a prompt, which a wrong order of the parts would mix up."""

        def predict(self, prefixes):
            sizes.append(len(prefixes))
            return Belief(
                np.array([1 / len(p.prompt.question) for p in prefixes]), np.arange(len(prefixes), dtype=float) + 1
            )

    sizes: list[int] = []
    monkeypatch.setattr(module, "make_predictor", lambda *_: Counting())
    whole = scored("whole")
    monkeypatch.setattr(module, "CHUNK", 5)
    parts = scored("parts")
    assert sizes == [12, 5, 5, 2]
    assert parts.drop_columns("concentration").equals(whole.drop_columns("concentration"))
    assert parts["concentration"].to_pylist() == [*range(1, 6), *range(1, 6), 1, 2]
