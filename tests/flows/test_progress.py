"""The bars on the terminal: one for each stage in progress, over all shards."""

from __future__ import annotations

from rich.console import Console

from flows.progress import Display


def shown(display: Display) -> dict[str, tuple[float, float | None]]:
    bars = display._progress.tasks
    return {bar.description: (bar.completed, bar.total) for bar in bars if bar.description != "iterations"}


def test_bar_of_a_stage_sums_over_its_shards():
    display = Display(Console(quiet=True), 1)
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
