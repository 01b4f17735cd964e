"""Every overlay in params/ is a valid set of parameters, says what it is for, and can be planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from components.environments import ENVIRONMENTS
from components.errors import UserError
from components.params.load import load_params
from components.planning import make_cluster, plan
from tasks.run import open_run

ROOT = Path(__file__).parents[1]
OVERLAYS = sorted((ROOT / "params").glob("*.yaml"))
QWEN = [path for path in OVERLAYS if path.stem.startswith("qwen3")]


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.stem)
def test_overlay_is_valid_and_says_what_it_is_for(path):
    settings = load_params(path)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert ENVIRONMENTS[settings.environment.name].needs_model == (settings.policy.path is not None)


def test_each_real_task_has_an_overlay_for_both_sizes():
    assert [path.stem for path in QWEN] == [
        f"qwen3-{size}-{task}" for size in ("14b", "8b") for task in ("functions", "math", "multihop")
    ]
    tasks = {path.stem: load_params(path).environment.name for path in QWEN}
    names = {"functions": "functions", "math": "math", "multihop": "search"}
    assert all(names[stem.rpartition("-")[2]] == task for stem, task in tasks.items())


@pytest.mark.parametrize("path", [*QWEN, ROOT / "params/smollm2-135m.yaml"], ids=lambda path: path.stem)
def test_missing_model_names_the_command_that_makes_it_before_anything_starts(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no model is
    settings = load_params(path, {"run.runs_dir": str(tmp_path / "runs")})
    name = Path(settings.policy.path).name
    command = f"hf download Qwen/{name} --local-dir models/{name}" if path in QWEN else "make smollm2"
    with pytest.raises(
        UserError, match=rf"policy\.path='models/{name}': no config.json there; make it with: {command}"
    ):
        open_run(settings, "r")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("path", QWEN, ids=lambda path: path.stem)
def test_paper_setting_fits_on_eight_of_the_largest_gpus(path):
    made = plan(load_params(path), make_cluster(8, "H200", None))
    assert made.problems == []
    assert 1 < made.seconds / 3600 < 10_000


def test_files_that_an_overlay_brings_along_are_there():
    named = re.findall(r"data/capitals/\w+\.jsonl", (ROOT / "params/smollm2-135m.yaml").read_text())
    assert len(named) == 3
    assert all((ROOT / name).is_file() for name in named)


def test_larger_model_learns_as_the_smaller_one():
    for path in QWEN:
        if "14b" in path.stem:
            small, large = (load_params(p) for p in (path.with_name(path.name.replace("14b", "8b")), path))
            assert large.policy.path == "models/Qwen3-14B"
            for section in ("environment", "allocation", "predictor", "evaluation"):
                assert getattr(small, section) == getattr(large, section)
            assert large.update.model_copy(update={"offload": False}) == small.update
