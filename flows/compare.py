"""`trace compare`: finished runs beside each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console()

SHOWN = (  # what a terminal has room for
    "accuracy_at_units",
    "accuracy_at_units_gain",
    "accuracy_at_tokens",
    "accuracy_at_tokens_gain",
    "cost_units",
    "effective_ratio",
)


def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids, paths, or patterns such as 'abl-*'.")],
    baseline: Annotated[str, typer.Option(help="Arm that the others are set against.")] = "grpo",
    accuracy: Annotated[
        float | None, typer.Option(min=0, max=1, help="Accuracy to reach; by default the baseline's at the end.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the tables and the figure.")] = Path("comparison"),
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Also make an MLflow run, parent of the runs.")] = False,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")] = Path("runs"),
) -> None:
    """Compare arms at equal units and equal tokens: mean and 95 % interval, paired by seed."""
    from components.tracking.compare import COLUMNS, cells
    from flows import services
    from tasks.compare import log_comparison, read_curves, write_comparison
    from tasks.run import find_run

    found = [
        find_run(each, runs_dir)
        for name in names
        for each in (sorted(p.name for p in runs_dir.glob(name) if p.name != "latest") or [name])
    ]
    runs = list({run.path: run for run in found}.values())
    curves = read_curves(runs)
    rows = write_comparison(curves, output, baseline, accuracy)
    for setting in dict.fromkeys(row["setting"] for row in rows):
        mine = [row for row in rows if row["setting"] == setting]
        title = f"{setting}: at {mine[0]['units']:,.0f} units and {mine[0]['tokens']:,.0f} tokens"
        table = Table("arm", "seeds", *(COLUMNS[name] for name in SHOWN), title=title, title_justify="left")
        for row in mine:
            table.add_row(*cells(row, SHOWN))
        console.print(table)
    if mlflow:
        os.environ.setdefault("MLFLOW_TRACKING_URI", services.mlflow_uri(Path.cwd()))
        console.print(f"MLflow run {log_comparison(output.name, runs, rows, output)}", highlight=False)
    console.print(f"Written to {output}: comparison.md, comparison.csv, comparison.json, accuracy.svg", highlight=False)
