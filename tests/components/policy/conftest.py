from __future__ import annotations

from pathlib import Path

import pytest

from components.policy.renderer import Renderer


@pytest.fixture(scope="session")
def renderer(random_policy: Path) -> Renderer:
    return Renderer.load(random_policy)
