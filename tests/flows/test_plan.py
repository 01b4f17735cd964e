"""`trace plan`: a table for people, JSON for tools, an exit code for scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.errors import UserError
from flows.cli import app

ROOT = Path(__file__).parents[2]
MATH = str(ROOT / "params/qwen3-8b-math.yaml")


def run(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "200"})


def test_a_run_that_fits_says_so_and_ends_with_0():
    result = run(MATH, "--gpu", "H200")
    assert result.exit_code == 0
    for stage in ("scoring", "generation", "expansion", "verification", "refit", "update", "checkpoint"):
        assert re.search(rf"^ ?{stage[:8]}", result.output, re.MULTILINE), stage
    assert "8,190,735,360 parameters on 8 × H200" in result.output
    assert "It fits." in result.output


def test_a_run_that_does_not_fit_names_the_key_in_one_line_and_ends_with_1():
    result = run(MATH, "--gpus", "8", "--gpu", "H100")
    assert result.exit_code == 1
    told = [line for line in result.stderr.splitlines() if line]
    assert told
    assert all(line.startswith("Does not fit: ") for line in told)
    assert any("engine.max_tokens" in line for line in told)
    assert "It fits." not in result.output


def test_json_is_one_object_with_the_same_verdict():
    result = run(MATH, "--gpu", "H100", "--json", "--set", "run.iterations=2")
    plan = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (plan["fits"], plan["iterations"], plan["parameters"]) == (False, 2, 8190735360)
    assert plan["cluster"]["devices"] == 8
    assert plan["seconds"] == pytest.approx(2 * sum(stage["seconds"] for stage in plan["stages"]))
    update = next(stage for stage in plan["stages"] if stage["name"] == "update")
    assert update["bytes"] == pytest.approx(sum(update["memory"].values()))


def test_the_default_is_planned_for_this_machine():
    result = run(str(ROOT / "params.yaml"))
    assert result.exit_code == 0
    assert "this machine's CPU" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "T1000", "--gpus", "1"], "--gpu T1000: its peak is known only of A100, H100, H200"),
        (["--rollout-tokens", "1e9"], "--rollout-tokens 1e[+]09: expected more than 0 and at most engine.max_tokens"),
        (["--gpu-memory", "0"], "--gpu-memory 0: expected more than 0"),
        (["--set", "policy.path=models/Unknown"], "policy.path='models/Unknown': no config.json there"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    result = run(MATH, *arguments)
    assert isinstance(result.exception, UserError)
    assert re.search(message, str(result.exception))


def test_memory_and_length_can_be_given():
    assert run(MATH, "--gpu", "H100", "--gpu-memory", "192").exit_code == 0
    long, short = (json.loads(run(MATH, "--json", "--rollout-tokens", n).stdout) for n in ("8000", "4000"))
    assert long["tree_tokens"] == 2 * short["tree_tokens"]
