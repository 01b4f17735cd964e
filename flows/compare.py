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
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]RUN...",
            help="Run ids, paths, or patterns such as 'abl-*'; runs with a label are a setting of that name.",
        ),
    ],
    baseline: Annotated[str, typer.Option(help="Arm that the others are set against.")] = "grpo",
    accuracy: Annotated[
        float | None, typer.Option(min=0, max=1, help="Accuracy to reach; by default the baseline's at the end.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("comparison"),
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Also make an MLflow run, parent of the runs.")] = False,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")] = Path("runs"),
) -> None:
    """Compare arms at equal units and equal tokens: mean and 95 % interval, paired by seed."""
    from components.tracking.compare import COLUMNS, by_title, cells
    from flows import services
    from tasks.compare import check_cells, log_comparison, read_curves, write_comparison
    from tasks.run import Run, find_run

    labelled: dict[str, dict[Path, Run]] = {}
    for name in names:
        label, _, pattern = name.rpartition("=")
        for each in sorted(p.name for p in runs_dir.glob(pattern) if p.name != "latest") or [pattern]:
            run = find_run(each, runs_dir)
            labelled.setdefault(label, {})[run.path] = run
    curves = [curve for label, runs in labelled.items() for curve in read_curves(list(runs.values()), label)]
    check_cells(curves)
    rows = write_comparison(curves, output, baseline, accuracy)
    for title, mine in by_title(rows).items():
        title = f"{title}: at {mine[0]['units']:,.0f} units and {mine[0]['tokens']:,.0f} tokens"
        table = Table("arm", "seeds", *(COLUMNS[name] for name in SHOWN), title=title, title_justify="left")
        for row in mine:
            table.add_row(*cells(row, SHOWN))
        console.print(table)
    if mlflow:
        os.environ.setdefault("MLFLOW_TRACKING_URI", services.mlflow_uri(Path.cwd()))
        runs = [run for found in labelled.values() for run in found.values()]
        console.print(f"MLflow run {log_comparison(output.name, runs, rows, output)}", highlight=False)
    console.print(f"Written to {output}: {', '.join(sorted(p.name for p in output.iterdir()))}", highlight=False)
