"""A harmed file is named in one line, or the run goes on from an earlier good state to the same end; never otherwise.

The long version, over every file, is bench/damage.py.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.attempts import attempt, left_behind, project
from tests.faults.damage import DAMAGES, counterpart, outcome
from tests.faults.runs import SMALL

SHORT = SMALL | {"run": SMALL["run"] | {"iterations": 2, "keep_policies": 2}}
LONG = SHORT | {"run": SHORT["run"] | {"iterations": 3}}
OTHER = SHORT | {
    "run": SHORT["run"] | {"seed": 1},
    "environment": SHORT["environment"] | {"train_prompts": 65},
    "policy": SHORT["policy"] | {"warmup": SHORT["policy"]["warmup"] | {"steps": 3}},
}
NEWEST = "runs/r/iterations/0001"
CASES = [
    (f"{NEWEST}/policy/model.safetensors", "cut", "as undisturbed"),
    (f"{NEWEST}/policy/optimizer.safetensors", "flipped", "as undisturbed"),
    (f"{NEWEST}/predictor/head.safetensors", "foreign", "as undisturbed"),
    (f"{NEWEST}/manifest.json", "flipped", "as undisturbed"),
    (f"{NEWEST}/metrics.json", "flipped", "as undisturbed"),
    ("runs/r/iterations/0000/forest.parquet", "foreign", "named"),
    ("runs/r/iterations/0000/manifest.json", "empty", "named"),
    ("runs/r/metrics.jsonl", "foreign", "as undisturbed"),
    ("runs/r/params.yaml", "cut", "as undisturbed"),
    ("runs/r/params.yaml", "foreign", "named"),
    ("runs/r/manifest.json", "flipped", "as undisturbed"),
    ("data/multihop/*/train.parquet", "foreign", "as undisturbed"),
    ("data/multihop/*/card.json", "flipped", "as undisturbed"),
    ("data/warmup/*/*/model.safetensors", "flipped", "as undisturbed"),
]


@pytest.fixture(scope="module")
def runs(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    roots = {name: folder / name for name in ("finished", "alone", "other")}
    shutil.copytree(small_data, roots["finished"] / "data")
    for name, tree in (("finished", SHORT), ("other", OTHER)):
        assert attempt(project(roots[name], tree)).code == 0
    shutil.copytree(roots["finished"], roots["alone"], symlinks=True)
    assert attempt(project(roots["alone"], LONG)).code == 0
    return roots


@pytest.mark.parametrize(("pattern", "how", "expected"), CASES)
def test_harmed_file_is_named_or_the_end_is_the_same(runs, tmp_path, pattern, how, expected):
    root = shutil.copytree(runs["finished"], tmp_path / "damaged", symlinks=True)
    project(root, LONG)
    file = str(next(root.glob(pattern)).relative_to(root))
    DAMAGES[how](root / file, counterpart(file, runs["other"]))
    ending = attempt(root)
    assert outcome(ending, root, left_behind(runs["alone"] / "runs" / "r"), file) == expected, ending.said
    if expected == "as undisturbed":
        assert "Warning: " in ending.said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_full_disk_stops_with_one_line_and_once_there_is_space_the_run_goes_on(runs, small_disk, tmp_path):
    """At every size of what is left, the last good state stays: the run ends as one that never met a full disk."""
    tree = LONG | {"run": LONG["run"] | {"runs_dir": str(small_disk / "runs")}}
    root, filler, refusals = project(tmp_path, tree, runs["finished"] / "data"), small_disk / "filler", 0
    for left in (20, 300, 1500):
        filler.unlink(missing_ok=True)
        filler.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - left * 1024)))
        ending = attempt(root)
        assert ending.code in (0, 2), ending.said
        assert "Traceback" not in ending.said
        refusals += "no space left" in ending.said.lower()
    assert refusals
    filler.unlink()
    assert attempt(root).code == 0
    assert left_behind(small_disk / "runs" / "r") == left_behind(runs["alone"] / "runs" / "r")
