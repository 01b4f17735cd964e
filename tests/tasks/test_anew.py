"""`trace train --anew`: what is over is replaced, what was interrupted is continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.errors import UserError
from components.params.root import Params, compose
from components.storage import write_json, write_text
from tasks.run import open_run


def with_run(params: Params, **values) -> Params:
    return compose(params.model_dump() | {"run": params.run.model_dump() | values})


@pytest.fixture
def began(params: Params, tmp_path: Path) -> Params:
    """Parameters of a run that has something in its folder."""
    params = with_run(params, runs_dir=str(tmp_path / "runs"), data_dir=str(tmp_path / "data"))
    write_text(open_run(params, "r").iteration(0) / "roots.parquet", "kept")
    return params


def kept(params: Params) -> bool:
    return (Path(params.run.runs_dir) / "r/iterations/0000/roots.parquet").exists()


def test_interrupted_run_is_continued(began):
    open_run(began, "r", anew=True)
    assert kept(began)


def test_finished_run_is_replaced_only_when_asked(began):
    write_json(Path(began.run.runs_dir) / "r/summary.json", {})
    open_run(began, "r")
    assert kept(began)
    open_run(began, "r", anew=True)
    assert not kept(began)


def test_run_of_other_parameters_is_replaced_only_when_asked(began):
    other = with_run(began, seed=1)
    with pytest.raises(UserError, match=r"run\.seed is 0 there and 1 here"):
        open_run(other, "r")
    assert kept(began)
    assert open_run(other, "r", anew=True).params.run.seed == 1
    assert not kept(began)


def test_run_in_a_store_is_not_emptied(began, tmp_path):
    with pytest.raises(UserError, match=r"--anew empties a run on this machine, not in run\.store"):
        open_run(with_run(began, store=f"file://{tmp_path}/store"), "r", anew=True)
    assert kept(began)
