"""Data and the first policy of the small runs: made once, and copied to where they are harmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.attempts import attempt, project
from tests.faults.runs import SMALL


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = project(tmp_path_factory.mktemp("small"), SMALL | {"run": SMALL["run"] | {"iterations": 1}})
    assert attempt(root).code == 0
    return root / "data"
