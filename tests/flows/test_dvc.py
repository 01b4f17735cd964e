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

    folder = Path("runs", sys.argv[sys.argv.index("--run-id") + 1])
    assert "--anew" in sys.argv
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
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(REPOSITORY / "params", folder / "params")
    for name in ("components", "tasks", "flows", "data/multihop", "bin"):
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
    repro = ("repro", "--single-item", "train@trace-0")
    crashed = dvc(project, *repro)
    assert crashed.returncode != 0
    assert "crashed" in crashed.stderr
    done = dvc(project, *repro)
    assert done.returncode == 0, done.stderr
    run = project / "runs" / "dvc-trace-s0"
    assert (run / "checkpoint").read_text() == "paid for"
    assert (run / "summary.json").exists()


def test_c77_stages_have_readable_names(project: Path) -> None:
    listed = dvc(project, "stage", "list", "--name-only").stdout.split()
    assert {"prepare@multihop", "train@trace-0", "train@grpo-filter-0"} <= set(listed)
    assert all(name.replace("@", "").replace("-", "").isalnum() and "set" not in name for name in listed)
