"""Figures of simulated cells. They are returned, not shown."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from components.simulation.sweep import Cell

PANELS = {
    "effective_ratio": "Effective ratio, by prompt",
    "squared_gradient": "Squared gradient per unit (proxy)",
    "turns": "Generated turns per unit (factual rollout = 1)",
    "turns_gradient": "Squared gradient per generated turn",
}


def bars(cells: Sequence[Cell]) -> Figure:
    """The arms beside each other, with 95 % intervals over the seeds."""
    figure = Figure(figsize=(10, 0.9 + 0.5 * len(cells)), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
        errors = [cell.margin(name) for cell in cells]
        axes.barh([cell.arm for cell in cells], [cell.mean(name) for cell in cells], xerr=errors, color="#5b8db8")
        axes.set_title(title.replace(" (", "\n(").replace(" per", "\nper").replace(", ", ",\n"), fontsize="medium")
        _dress(axes, name, axes.xaxis)
    axes.invert_yaxis()
    return figure


def curves(cells: Sequence[Cell], points: Sequence[str], label: str) -> Figure:
    """One line an arm against the swept values, with 95 % intervals over the seeds.

    Args:
        cells: For each arm, one cell for each point, in the order of the points.
        points: The swept values, as they are to be written.
        label: What is swept.
    """
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    arms = list(dict.fromkeys(cell.arm for cell in cells))
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for index, arm in enumerate(arms):
            mine = [cell for cell in cells if cell.arm == arm]
            axes.errorbar(
                range(len(points)),
                [cell.mean(name) for cell in mine],
                [cell.margin(name) for cell in mine],
                label=arm,
                color=f"C{index % 10}",
                marker="os^Dv"[index % 5],
                markersize=4,
                linestyle="-" if index < 5 else "--",
            )
        axes.set_xticks(range(len(points)), points)
        axes.set(title=title, xlabel=label)
        _dress(axes, name, axes.yaxis)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    return figure


def _dress(axes: Axes, name: str, scale: object) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    if name == "effective_ratio":
        scale.set_major_formatter(PercentFormatter(1.0))  # type: ignore[attr-defined]
