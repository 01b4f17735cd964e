"""What `trace simulate` shows and writes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.table import Table

from components.simulation import Cell


def _shown(cell: Cell, name: str, scale: float = 100.0, digits: int = 1) -> str:
    mean, margin = scale * cell.mean(name), scale * cell.margin(name)
    if mean != mean:  # NaN: the arm has nothing of the kind
        return "–"
    return f"{mean:,.{digits}f}" + (f" ±{margin:.{digits}f}" if margin == margin else "")


def _per_cent(cell: Cell) -> str:
    """The effective ratio by prompt."""
    ratio = cell.mean("effective_ratio")
    return "–" if ratio != ratio else f"{ratio:.0%}"


def table(cells: Sequence[Cell], turns: int) -> Table:
    table = Table(
        caption="per cent, ± 95 % interval over seeds; squared gradient: proxy, per 100 units", show_lines=False
    )
    table.add_column("arm", no_wrap=True)
    for title in ("prompts", "effective ratio\nby prompt", "\nby leaf", "\nat 4 leaves", "squared\ngradient"):
        table.add_column(title, justify="right")
    for title in ("units", "generated\nturns", "wasted", "flips"):
        table.add_column(title, justify="right")
    for cell in cells:
        units = cell.budget.units
        table.add_row(
            cell.arm,
            f"{cell.mean('active_prompts') * units:,.0f}",
            _shown(cell, "effective_ratio"),
            _shown(cell, "effective_ratio_leaf"),
            _shown(cell, "effective_ratio_matched"),
            _shown(cell, "squared_gradient"),
            f"{cell.mean('units') * units:,.0f}",
            f"{cell.mean('turns') * units * turns:,.0f}",
            _shown(cell, "wasted", digits=0).partition(" ")[0] + "%" * (cell.mean("units") > 0),
            _shown(cell, "flip_rate", digits=0).partition(" ")[0],
        )
    return table


def swept_table(cells: dict[str, list[Cell]], points: Sequence[str], label: str) -> Table:
    table = Table(title=f"Effective ratio by prompt / squared gradient per 100 units, against the {label}")
    table.add_column("arm", no_wrap=True)
    for point in points:
        table.add_column(point, justify="right", no_wrap=True)
    for name, mine in cells.items():
        table.add_row(name, *(f"{_per_cent(c)} / {100 * c.mean('squared_gradient'):.1f}" for c in mine))
    return table


def conclusion(cells: Sequence[Cell]) -> str:
    """What the table means, in a line."""
    first, best = cells[0], max(cells, key=lambda cell: cell.mean("turns_gradient"))
    found, reference = best.mean("turns_gradient"), first.mean("turns_gradient")
    if best is first:
        line = f"No other arm finds more contrast per generated turn than {first.arm}."
    else:
        lead = f"{found / reference:.1f} times the" if reference else "the most"
        line = (
            f"{best.arm} finds contrast in {_per_cent(best)} of its prompts ({first.arm}: {_per_cent(first)}) and "
            f"{lead} squared gradient per generated turn{', the most of these arms' if reference else ''}."
        )
    return f"{line} Contrast is not accuracy: how fast a policy learns from it, only training tells."


def write(out: Path, cells: Sequence[Cell], swept: tuple[str, str, Sequence[str]] | None) -> Path:
    """Writes the cells as CSV and as a picture, SVG and PNG; returns their path without the suffix.

    Args:
        out: Existing folder.
        cells: For each arm, one cell for each swept point.
        swept: Name and label of what was swept, and its points as they are to be written; None for one point.

    Raises:
        UserError: if the folder cannot be written to.
    """
    from matplotlib import rc_context

    from components.simulation import plots
    from components.storage import atomic_path, write_text

    stem = out / ("simulate" if swept is None else f"simulate-{swept[0]}")
    write_text(stem.with_suffix(".csv"), _csv(cells))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": stem.name}):
        figure = plots.bars(cells) if swept is None else plots.curves(cells, swept[2], swept[1])
        for kind, metadata in (("svg", {"Date": None}), ("png", None)):
            with atomic_path(stem.with_suffix(f".{kind}")) as path:
                figure.savefig(path, format=kind, metadata=metadata, dpi=120)
    return stem


def _csv(cells: Sequence[Cell]) -> str:
    """One row a cell: the mean of every number over the seeds, and half its 95 % interval (`_margin`)."""
    names = [*cells[0].runs[0], "turns_gradient"]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arm", "pool", "M", "N", "G", "noise", "belief", "seeds", *names, *(f"{n}_margin" for n in names)])
    for cell in cells:
        budget, predictor = cell.budget, cell.predictor
        known = [cell.arm, cell.pool, budget.root_units, budget.continuations, budget.group_size]
        known += [f"{predictor.noise:g}", predictor.belief, len(cell.runs)]
        writer.writerow([*known, *(f"{of(name):.6g}" for of in (cell.mean, cell.margin) for name in names)])
    return text.getvalue()
