"""Figures of runs beside each other. They are returned, not logged or shown; thin lines are seeds, thick ones means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from components.tracking.compare import Curve
from components.tracking.names import WORK

Style = dict[str, Any]  # of an arm: colour and dashes
Panel = Callable[[Axes, list[Curve], Style], None]  # draws the seeds of one arm

TIMES = {kind: stages for kind, stages in WORK.items() if kind != "evaluation"}


def accuracy(curves: Sequence[Curve]) -> Figure:
    """Accuracy over units and over tokens, a row of panels for each setting."""

    def over(axis: str) -> Panel:
        def draw(axes: Axes, runs: list[Curve], style: Style) -> None:
            x = np.linspace(0.0, min(getattr(c, axis)[-1] for c in runs), 100)
            for c in runs:
                axes.plot(getattr(c, axis), c.accuracy, **style, alpha=0.25, linewidth=0.8)
            axes.plot(x, np.mean([np.interp(x, getattr(c, axis), c.accuracy) for c in runs], axis=0), **style)
            axes.set(xlabel=f"{axis} spent", ylabel="accuracy, held out")

        return draw

    return _grid(curves, [over("units"), over("tokens")])


def ratios(curves: Sequence[Curve]) -> Figure:
    """Effective ratio over the iterations: by prompt, by leaf, and of four leaves a prompt."""
    keys = ("effective_ratio/prompts", "effective_ratio/leaves", "effective_ratio/at_4_leaves")
    return _grid(curves, [_history(key, f"effective ratio, {key.partition('/')[2]}") for key in keys])


def predictor(curves: Sequence[Curve]) -> Figure:
    """Rank correlation of the predictions, before they were trained on: at prompts and at prefixes."""
    keys = {"predictor/spearman_root": "Spearman, prompts", "predictor/spearman_prefix": "Spearman, prefixes"}
    return _grid(curves, [_history(key, label) for key, label in keys.items()])


def budget(curves: Sequence[Curve]) -> Figure:
    """Where the budget goes: rollouts by the depth that they start from, and the share of the pool that is sampled."""

    def depths(axes: Axes, runs: list[Curve], style: Style) -> None:
        length = max(len(c.depths) for c in runs)
        total = np.sum([np.pad(c.depths, (0, length - len(c.depths))) for c in runs], axis=0)
        if total.sum():
            axes.plot(np.arange(length), total / total.sum(), **style, marker="o", markersize=3)
        axes.set(xlabel="turns before the rollout starts", ylabel="share of rollouts")

    return _grid(curves, [depths, _history("budget/active_share", "active share of the pool")])


def times(curves: Sequence[Curve]) -> Figure:
    """Share of an iteration's time by kind of work, a bar for each setting and arm; evaluation left out."""
    names = list(dict.fromkeys((c.title, c.arm) for c in curves))
    figure = Figure(figsize=(8, 0.28 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    shares = np.array([_times([c for c in curves if (c.title, c.arm) == name]) for name in names])
    left = np.zeros(len(names))
    for part, share in zip((*TIMES, "rest"), shares.T, strict=True):
        axes.barh([f"{title}: {arm}" for title, arm in names], share, left=left, label=part)
        left += share
    axes.invert_yaxis()
    axes.tick_params(labelsize="x-small")
    axes.set(xlabel="share of the time of an iteration", xlim=(0, 1))
    figure.legend(loc="outside lower center", ncols=len(TIMES) + 1, fontsize="small")
    return figure


FIGURES = {
    "accuracy": accuracy,
    "effective_ratio": ratios,
    "predictor": predictor,
    "budget": budget,
    "time": times,
}


def _times(runs: list[Curve]) -> np.ndarray:
    """Shares by the keys of `TIMES` and the rest; float64 (len(TIMES) + 1,), zeros where no times are known."""

    def total(stage: str) -> float:
        return float(sum(np.nansum(c.history.get(f"time/{stage}", np.zeros(1))) for c in runs))

    whole = total("iteration") - total("evaluate")
    parts = [sum(map(total, stages)) for stages in TIMES.values()]
    return np.array([*parts, max(0.0, whole - sum(parts))]) / whole if whole > 0 else np.zeros(len(TIMES) + 1)


def _history(key: str, label: str) -> Panel:
    """Draws a metric over the iterations."""

    def draw(axes: Axes, runs: list[Curve], style: Style) -> None:
        known = [c.history[key] for c in runs if np.isfinite(c.history.get(key, np.full(1, np.nan))).any()]
        for values in known:
            axes.plot(values, **style, alpha=0.25, linewidth=0.8)
        if known:
            values = np.array([v[: min(map(len, known))] for v in known])
            seen = np.isfinite(values)
            counts = seen.sum(axis=0)
            axes.plot(np.where(seen, values, 0).sum(axis=0) / np.where(counts, counts, np.nan), **style)
        axes.set(xlabel="iteration", ylabel=label)

    return draw


def _style(arm: int) -> Style:
    """Ten colours, then the same dashed."""
    return {"color": f"C{arm % 10}", "linestyle": "-" if arm < 10 else "--"}


def _grid(curves: Sequence[Curve], panels: Sequence[Panel]) -> Figure:
    """A row of panels for each setting, in which every arm has its colour."""
    titles, arms = list(dict.fromkeys(c.title for c in curves)), list(dict.fromkeys(c.arm for c in curves))
    figure = Figure(figsize=(4.6 * len(panels), 2.8 * len(titles) + 0.5), layout="constrained")
    grid = figure.subplots(len(titles), len(panels), squeeze=False)
    for row, title in zip(grid, titles, strict=True):
        for axes, draw in zip(row, panels, strict=True):
            for index, arm in enumerate(arms):
                if runs := [c for c in curves if (c.title, c.arm) == (title, arm)]:
                    draw(axes, runs, _style(index))
            axes.set_title(title, fontsize="medium")
            axes.grid(alpha=0.3)
    handles = [axes.plot([], [], **_style(index))[0] for index in range(len(arms))]
    figure.legend(handles, arms, loc="outside lower center", ncols=6, fontsize="small")
    return figure
