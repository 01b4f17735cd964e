"""`trace report`: a whole run on one page, in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()


def report(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Run id, path, URL in a store, or 'latest'.")],
    output: Annotated[Path | None, typer.Option(help="Where to write the page, instead of into the run.")] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")] = Path("runs"),
) -> None:
    """Write curves, budget, calibration, times and the best trees of a run as one HTML page, and open it."""
    from tasks.report import write_report
    from tasks.run import find_run

    run = find_run(name, runs_dir)
    page = write_report(run, output).resolve().as_uri()
    console.print(f"{len(run.metrics())} iterations: {page}", highlight=False, soft_wrap=True)
    if show:
        webbrowser.open(page)
