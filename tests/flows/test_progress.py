"""What a run shows on the terminal: a bar for each stage in progress, and why where nothing was learnt."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from components.params.root import compose
from flows.progress import Display, show_summary
from tasks.summary import one_line


def shown(display: Display) -> dict[str, tuple[float, float | None]]:
    bars = display._progress.tasks
    return {bar.description: (bar.completed, bar.total) for bar in bars if bar.description != "iterations"}


def test_bar_of_a_stage_sums_over_its_shards():
    display = Display(Console(quiet=True), compose({}))
    assert shown(display) == {"starting": (0, None)}
    display.stage("generate", 0, 0, (0, 2))
    display.stage("generate", 3, 10, (0, 2))
    display.stage("generate", 4, 6, (1, 2))
    display.stage("generate", 5, 10, (0, 2))
    display.stage("expand_prefixes", 1, 8, (1, 2))
    assert shown(display) == {"starting": (0, None), "generate": (9, 16), "expand prefixes": (1, 8)}
    display.stage("refit_predictor", 0, 0)  # a stage without shards: those before it have ended
    assert shown(display) == {"refit predictor": (0, None)}
    display.stage("generate", 2, 4)
    assert shown(display) == {"generate": (2, 4)}


def test_a_run_that_learnt_nothing_says_why_at_each_iteration_and_at_its_end(tmp_path):
    shares = {"policy/groups/total": 3.0, "policy/groups/all_fail_frac": 1.0, "stop/length": 1.0}
    line = dict.fromkeys(("iteration", "budget/units", "tokens/generated", "time/iteration"), 0) | shares
    line |= {"eval/accuracy": None, "effective_ratio/prompts": None, "rollouts/trained": 0.0, "rollouts/sampled": 16.0}
    assert "nothing was learnt: 3 of 3 groups all fail, 16 of 16 rollouts cut at 128 tokens" in one_line(
        line, compose({})
    )
    assert "nothing" not in one_line(line | {"rollouts/trained": 1.0}, compose({}))
    numbers = ("accuracy/first", "accuracy/last", "tree/flip_rate", "budget/units", "budget/leaves")
    numbers += ("budget/factual_rollouts", "budget/continuations", "tokens/generated", "iterations")
    summary = dict.fromkeys(numbers, 0.25) | dict.fromkeys(
        [f"effective_ratio/prompts{s}" for s in ("", "/first", "/last")]
    )
    console = Console(record=True, file=StringIO(), width=300)
    show_summary(console, summary | {"run_id": "r", "arm": "grpo", "nothing_learnt": "why"}, tmp_path)
    text = console.export_text()
    assert "Warning: why" in text
    assert text.count("0.250") == 3
