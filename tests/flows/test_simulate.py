"""`trace simulate` as a user meets it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from components.allocation.arms import ARMS
from components.allocation.budget import Budget
from components.errors import UserError
from components.simulation import NoisyPredictor, Population, sweep
from components.storage import write_parquet
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason
from flows import simulate as command
from flows.cli import app


@pytest.fixture
def trace(monkeypatch, tmp_path):
    """Runs the command in an empty folder on a wide terminal, and hands back what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.console, "width", 200)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["simulate", *arguments])
        if result.exception is not None:
            raise result.exception
        return result.output

    return call


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_table_has_a_row_for_every_main_arm_and_a_line_on_what_it_means(trace):
    out = trace("--pool", "64", "--seeds", "2")
    for arm in command.MAIN_ARMS.split(","):
        assert f"│ {arm} " in out
    assert "64 prompts, flat groups of 8 mixed in 23.0%" in out
    assert "times the squared gradient per generated turn" in out
    assert "Contrast is not accuracy" in out


def test_file_holds_the_numbers_of_the_simulation(trace, tmp_path):
    trace("--arms", "grpo,trace", "-m", "64", "-n", "4", "--noise", "1", "--seeds", "3", "--out", "plan")
    expected = sweep(
        ["grpo", "trace"], [Budget(64, 4)], [96], [NoisyPredictor(1.0)], Population.with_mixed_share(0.23), seeds=3
    )
    written = rows(tmp_path / "plan" / "simulate.csv")
    assert [row["arm"] for row in written] == ["grpo", "trace"]
    for row, cell in zip(written, expected, strict=True):
        assert (row["pool"], row["M"], row["N"], row["seeds"]) == ("96", "64", "4", "3")
        for name in ("effective_ratio", "squared_gradient", "turns", "wasted"):
            assert float(row[name]) == pytest.approx(cell.mean(name), rel=1e-4)
            assert float(row[f"{name}_margin"]) == pytest.approx(cell.margin(name), rel=1e-4)
    assert "trace" in (tmp_path / "plan" / "simulate.svg").read_text()
    assert (tmp_path / "plan" / "simulate.png").read_bytes().startswith(b"\x89PNG")


def test_sweep_of_the_shape_keeps_the_units(trace, tmp_path):
    out = trace("--arms", "trace", "-m", "64", "--seeds", "1", "--sweep", "shape", "--out", ".")
    assert "128:0" in out
    assert "32:6" in out
    for row in rows(tmp_path / "simulate-shape.csv"):
        assert Budget(int(row["M"]), int(row["N"])).units == pytest.approx(128, abs=1.5 + float(row["N"]) / 2)
        assert row["pool"] == "64"


def test_sweeps_of_pool_and_noise(trace, tmp_path):
    trace("--arms", "pcl", "-m", "64", "--seeds", "2", "--sweep", "pool", "--out", ".")
    assert [row["pool"] for row in rows(tmp_path / "simulate-pool.csv")] == ["16", "32", "64", "128", "256"]
    trace("--arms", "pcl", "-m", "512", "--seeds", "2", "--sweep", "noise", "--out", ".")
    ratio = [float(row["effective_ratio"]) for row in rows(tmp_path / "simulate-noise.csv")]
    assert ratio[0] > ratio[3] > ratio[-1]  # perfect, 2, blind
    assert "predictor's error" in (tmp_path / "simulate-noise.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (1024, 1024)),
        (["--pool", "1000000"], (1_000_000, 1_000_000)),
        (["--pool", "512", "-m", "1024"], (512, 1024)),
        (["--pool-factor", "2", "-m", "1024"], (512, 1024)),
        (["--pool", "600", "--pool-factor", "3"], (600, 800)),
    ],
)
def test_pool_budget_and_their_ratio_follow_from_two_of_them(trace, monkeypatch, arguments, expected):
    seen = []
    monkeypatch.setattr(command, "_say", lambda setting, seeds: seen.append(setting))
    monkeypatch.setattr(command, "_points", lambda setting, sweep: {"": command.replace(setting, pool=16)})
    trace("--arms", "grpo", "--seeds", "1", *arguments)
    assert (seen[0].pool, seen[0].budget.root_units) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "grpo,best"], "--arms: 'best' is no arm that can be simulated; there is entropy-tree"),
        (["--arms", "react"], "'react' is no arm that can be simulated"),
        (["--arms", " , "], "names no arm"),
        (["--noise=-1"], "--noise=-1: a standard deviation is not negative"),
        (["--noise", "nan"], "--noise=nan"),
        (["--mean", "1"], "--mean=1: a mean success rate lies between 0 and 1"),
        (["--mixed", "1.5"], "mixed=1.5: groups of 8 at a mean success rate of 0.5 are mixed in a share between"),
        (["--pool-factor", "0"], "--pool-factor=0: give a positive number"),
        (["--pool", "8", "--pool-factor", "2", "-m", "9"], "leave one out"),
        (["-m", "2", "-n", "0"], "does not pay for one group of --group-size=8"),
        (["--like", "nothing"], "no run 'nothing' in runs/"),
        (["--like", "x", "--mixed", "0.3"], "leave out --mixed and --mean"),
        (["--out", "/proc/plan"], "--out=/proc/plan"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_simulated(trace, monkeypatch, arguments, message):
    monkeypatch.setattr("components.simulation.sweep", lambda *a: pytest.fail("simulated"))
    with pytest.raises(UserError) as error:
        trace(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_user_error_ends_with_code_2():
    out = subprocess.run(
        [sys.executable, "-m", "flows.cli", "simulate", "--arms", "best"], capture_output=True, text=True
    )
    assert out.returncode == 2
    assert out.stderr.startswith("Error: --arms: 'best' is no arm")
    assert len(out.stderr.strip().splitlines()) == 1


def test_c23_pool_smaller_than_the_batch_is_warned_of_and_the_rest_is_unspent(trace, tmp_path):
    out = trace("--arms", "grpo", "--pool", "8", "-m", "64", "--seeds", "1", "--out", ".")
    assert "the budget pays for 16 flat groups, more than there are prompts" in out
    assert float(rows(tmp_path / "simulate.csv")[0]["units"]) == 0.5


def test_planning_needs_neither_torch_nor_servers():
    code = (
        "import sys; from typer.testing import CliRunner; from flows.cli import app; "
        "r = CliRunner().invoke(app, ['simulate', '--pool', '16', '--seeds', '1', '--arms', 'trace']); "
        "heavy = {'torch', 'prefect', 'mlflow', 'transformers', 'matplotlib'} & set(sys.modules); "
        "print(r.exit_code, sorted(heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "0 []"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("arguments", [["--pool", "8", "--turns", "1"], ["-m", "8", "-n", "0", "--sweep", "shape"]])
def test_budget_too_small_for_any_contrast_is_no_crash(trace, arguments):
    out = trace("--seeds", "1", "--mixed", "0.01", *arguments)
    assert "nan" not in out
    assert "trace-unified" in out


@pytest.mark.parametrize("arm", ["grpo", "trace"])
def test_prompts_like_those_of_a_run(trace, tmp_path, arm):
    """Half of 40 prompts always succeed and half never do, but for four; rollouts of three turns."""
    outcomes = [[1] * 8] * 18 + [[0] * 8] * 18 + [[1, 0] * 4] * 4
    folder = run_folder(tmp_path / "runs" / "seen", arm, outcomes)
    assert json.loads((folder / "manifest.json").read_text()) == {}
    out = trace("--like", "seen", "--arms", "grpo", "--seeds", "1", "--pool", "512")
    assert "Fitted to 40 prompts of the newest forests of seen" in out
    assert "mean success rate 0.50, 3 turns" in out
    share = float(out.split("mixed in ")[1].split("%")[0])
    assert 5 < share < 15
    assert ("chose them by its predictor" in out) == ARMS[arm].uses_predictor


def test_run_without_an_iteration_is_said_so(trace, tmp_path):
    run_folder(tmp_path / "runs" / "new", "grpo", [])
    with pytest.raises(UserError, match="has no finished iteration"):
        trace("--like", "new")


def run_folder(path: Path, arm: str, outcomes: list[list[int]]) -> Path:
    """A run on disk with one forest of flat groups, three turns a rollout."""
    nodes: list[Node] = []
    for tree, rewards in enumerate(outcomes):
        root = len(nodes)
        nodes.append(Node(tree, f"p{tree}", root, -1, 0, Origin.ROOT, -1, -1))
        for sibling, reward in enumerate(rewards):
            for turn in (1, 2, 3):
                parent = root if turn == 1 else len(nodes) - 1
                nodes.append(Node(tree, f"p{tree}", len(nodes), parent, turn, Origin.FACTUAL, root, sibling))
            nodes[-1].stop_reason, nodes[-1].status, nodes[-1].reward = StopReason.ANSWERED, Status.OK, float(reward)
    path.mkdir(parents=True)
    (path / "params.yaml").write_text(yaml.safe_dump({"allocation": {"arm": arm}}))
    (path / "manifest.json").write_text("{}")
    if nodes:
        (path / "iterations" / "0000").mkdir(parents=True)
        write_parquet(path / "iterations" / "0000" / "forest.parquet", Forest(nodes).to_table())
    return path
