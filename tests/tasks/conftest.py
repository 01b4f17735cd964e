"""Fixtures of runs without Prefect."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.params.root import Params
from tasks.run import Run
from tests.tasks.pipeline import new_run, train


@pytest.fixture(scope="session")
def finished(params: Params, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has ended; a test that changes its files copies it first."""
    run = new_run(params, data_dir, tmp_path_factory.mktemp("runs"))
    train(run)
    return run
