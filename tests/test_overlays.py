"""Every overlay in params/ is a valid set of parameters, and says what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import load_params
from components.errors import UserError
from tasks.run import open_run

ROOT = Path(__file__).parents[1]
OVERLAYS = sorted((ROOT / "params").glob("*.yaml"))


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.stem)
def test_overlay_is_valid_and_says_what_it_is_for(path):
    settings = load_params(path)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert settings.environment.is_builtin == (settings.policy.path is None)


@pytest.mark.parametrize("path", [p for p in OVERLAYS if p.stem.startswith("qwen3")], ids=lambda path: path.stem)
def test_missing_model_is_told_before_anything_starts(path, tmp_path):
    settings = load_params(path, {"run.runs_dir": str(tmp_path / "runs")})
    with pytest.raises(UserError, match=r"policy\.path='models/Qwen3-8B'"):
        open_run(settings, "r")
    assert not (tmp_path / "runs").exists()
