"""Figures of a run. They are returned, not logged or shown."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

PANELS = {
    "Accuracy on held-out prompts": ["eval/accuracy"],
    "Effective ratio": ["effective_ratio/prompts", "effective_ratio/leaves"],
    "Predictor: rank correlation": ["predictor/spearman_root", "predictor/spearman_prefix"],
    "Budget, in rollouts": ["budget/bare_rollouts", "budget/continuations"],
}


def curves(lines: list[dict[str, Any]]) -> Figure:
    """The run's main metrics against units spent before the iteration.

    Args:
        lines: The lines of metrics.jsonl, in order.
    """
    figure = Figure(figsize=(10, 6), layout="constrained")
    spent = [sum(line["budget/units"] for line in lines[:k]) for k in range(len(lines))]
    for axes, (title, keys) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for key in keys:
            points = [(x, line[key]) for x, line in zip(spent, lines, strict=True) if line.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=key.partition("/")[2])
        axes.set(title=title, xlabel="units spent")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
    return figure
