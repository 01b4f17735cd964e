"""The project's dvc.yaml under a real DVC, with a stand-in for the command `trace`."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

REPOSITORY = Path(__file__).parents[2]
TRACE = """
    #!{python}
    import sys
    from pathlib import Path

    if sys.argv[1] == "compare":
        Path("comparison").mkdir()
        Path("comparison/metrics.json").write_text('{{"multihop": {{"trace": {{"accuracy_at_units": 0.5}}}}}}')
        Path("comparison/curves.csv").write_text("units,accuracy\\n0,0.25\\n256,0.5\\n")
        sys.exit()
    folder = Path("runs/ablation", sys.argv[sys.argv.index("--run-id") + 1])
    assert "--anew" in sys.argv
    assert "run.runs_dir=runs/ablation" in sys.argv
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        folder.mkdir(parents=True)
        checkpoint.write_text("paid for")
        sys.exit("crashed")
    (folder / "summary.json").write_text("{{}}")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name in ("dvc.yaml", "ablation.yaml", "params.yaml"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(REPOSITORY / "params", folder / "params")
    for name in ("components", "tasks", "flows"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("data/multihop", "data/warmup/multihop", "bin"):
        (folder / name).mkdir(parents=True)
    command = folder / "bin" / "trace"
    command.write_text(dedent(TRACE).lstrip().format(python=sys.executable))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    assert dvc(folder, "init", "--no-scm").returncode == 0
    return folder


def dvc(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(project / "bin"), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "DVC_NO_ANALYTICS": "1"}
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)


def test_c77_repro_after_a_crash_keeps_what_was_paid_for(project: Path) -> None:
    repro = ("repro", "--single-item", "train@multihop-trace-0")
    crashed = dvc(project, *repro)
    assert crashed.returncode != 0
    assert "crashed" in crashed.stderr
    done = dvc(project, *repro)
    assert done.returncode == 0, done.stderr
    run = project / "runs/ablation/multihop-trace-s0"
    assert (run / "checkpoint").read_text() == "paid for"
    assert (run / "summary.json").exists()


def test_c77_stages_have_readable_names(project: Path) -> None:
    listed = dvc(project, "stage", "list", "--name-only").stdout.split()
    assert {"prepare@multihop", "warmstart@devices", "train@calculator-trace-root-1", "compare"} <= set(listed)
    assert len(listed) == 3 + 3 + 3 * 6 * 2 + 1
    assert all(name.replace("@", "").replace("-", "").isalnum() and "set" not in name for name in listed)


def test_metrics_and_plots_show_the_comparison(project: Path) -> None:
    (project / "runs/ablation").mkdir(parents=True, exist_ok=True)
    done = dvc(project, "repro", "--single-item", "compare")
    assert done.returncode == 0, done.stderr
    assert "accuracy_at_units" in dvc(project, "metrics", "show", "--md").stdout
    shown = dvc(project, "plots", "show", "--json")
    assert "256" in shown.stdout, shown.stderr


def test_whole_comparison_rests_on_the_same_data_and_policies(project: Path) -> None:
    (project / "full").mkdir()
    shutil.copy(REPOSITORY / "full/dvc.yaml", project / "full")
    drawn = dvc(project, "dag", "full/dvc.yaml:wasteful@devices-trace-0", "--mermaid")
    assert "warmstart@devices" in drawn.stdout, drawn.stderr
    assert "prepare@devices" in drawn.stdout
