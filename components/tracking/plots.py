"""Figures of a run. They are returned, not logged or shown."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#3a8bd0", "#e07b30", "#3d9c70", "#a06cd5", "#d0567e", "#a8892c", "#4fa9b8", "#8a939c")  # on white, on black
Panels = dict[str, dict[str, str]]  # title to metric to what it is called

CURVES: Panels = {
    "Accuracy on held-out prompts": {"eval/accuracy": ""},
    "Effective ratio": {
        "effective_ratio/prompts": "by prompt",
        "effective_ratio/leaves": "by leaf",
        "effective_ratio/at_4_leaves": "at 4 leaves",
    },
    "Flip rate of continuations": {"tree/flip_rate": "seen", "tree/expected_flip_rate": "expected"},
    "Mean reward of factual rollouts": {"train/reward": ""},
    "Sampled tokens": {"tokens/generated": ""},
    "Rollouts": {"budget/factual_rollouts": "factual", "budget/continuations": "continuations"},
}
CALIBRATION: Panels = {
    name: {f"predictor/{metric}_root": "at prompts", f"predictor/{metric}_prefix": "at prefixes"}
    for name, metric in (("Spearman", "spearman"), ("Brier", "brier"), ("ECE", "ece"))
}


def curves(lines: Sequence[dict[str, Any]], panels: Panels = CURVES) -> Figure:
    """Metrics over iterations, three panels a row.

    Args:
        lines: The lines of metrics.jsonl, in order; what one does not have is left out of its curve.
        panels: What each panel shows.
    """
    rows = -(-len(panels) // 3)
    figure = _figure(2.75 * rows, below=0.55, above=0.5)
    for axes, (title, metrics) in zip(figure.subplots(rows, 3, squeeze=False).flat, panels.items(), strict=False):
        for colour, (key, label) in zip(COLOURS, metrics.items(), strict=False):
            points = [(line["iteration"], line[key]) for line in lines if line.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", color=colour, label=label)
        _dress(axes, title, pad=19)
        if len(axes.lines) > 1:  # between title and curves, where it hides none
            axes.legend(
                fontsize="small", framealpha=0, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.97), columnspacing=1
            )
    return figure


def stacks(panels: Mapping[str, Mapping[str, Sequence[float]]], iterations: Sequence[int]) -> Figure:
    """Bars over iterations, what makes them up on top of each other; a panel for each title.

    Args:
        panels: Title to name to values along `iterations`.
        iterations: Their numbers.
    """
    depth = -(-max(map(len, panels.values())) // 2)  # rows of the longest legend
    figure = _figure(2.9 + 0.18 * depth, below=0.6 + 0.18 * depth)
    for axes, (title, parts) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        below = [0.0] * len(iterations)
        for colour, (name, values) in zip(cycle(COLOURS), parts.items(), strict=False):
            axes.bar(iterations, values, bottom=below, color=colour, label=name, width=0.85)
            below = [b + v for b, v in zip(below, values, strict=True)]
        _dress(axes, title)
        if len(parts) > 1:
            axes.legend(fontsize="small", framealpha=0, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    return figure


def svg(figure: Figure, label: str) -> Markup:
    """A figure as an element of a page: text as text, in the colour of the page's, on the page's ground.

    Args:
        figure: A figure with black text and lines.
        label: What it shows, for those who cannot see it; figures of a page need different ones.
    """
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(written := io.StringIO(), format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("#000000", "currentColor")
    text = re.sub(r"font: ([^']*)'[^;\"]*", r"font: \1sans-serif", text)
    return Markup(text.replace("<svg", Markup('<svg class="plot" role="img" aria-label="{}"').format(label), 1))


def _figure(height: float, below: float, above: float = 0.3) -> Figure:
    """Ten inches wide, with so many inches around the panels; a layout engine would take twice as long to draw it."""
    figure = Figure(figsize=(10, height))
    figure.subplots_adjust(0.05, below / height, 0.99, 1 - above / height, wspace=0.2, hspace=0.6)
    return figure


def _dress(axes: Axes, title: str, pad: float = 6) -> None:
    axes.set_title(title, fontsize="medium", pad=pad)
    axes.set_xlabel("iteration", fontsize="small")
    axes.tick_params(labelsize="small")
    axes.locator_params(axis="x", integer=True, nbins=8)
    axes.locator_params(axis="y", nbins=6)
    axes.grid(color="#808080", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
