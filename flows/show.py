"""`trace view` and `trace report`: an iteration's trees, and a whole run, as pages in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from components.errors import UserError

console = Console()

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, path, URL in a store, or 'latest'.")]
OutputOption = Annotated[Path | None, typer.Option(help="Where to write the page, instead of into the run.")]
OpenOption = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]
RunsOption = Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")]


def view(
    name: RunArgument,
    iteration: Annotated[int | None, typer.Option(min=0, help="Iteration; by default the newest finished one.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt id of the tree to show first.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Write the pages of all iterations, linked to each other.")
    ] = False,
    output: OutputOption = None,
    show: OpenOption = True,
    runs_dir: RunsOption = Path("runs"),
) -> None:
    """Write the trees of an iteration as one self-contained HTML page, and open it."""
    from tasks.inputs import read_forest
    from tasks.report import write_trees
    from tasks.run import find_run

    if every and output is not None:
        raise UserError(f"--all writes into the run: leave out --output {output}")
    run = find_run(name, runs_dir)
    there = sorted(int(path.parent.name) for path in run.path.glob("iterations/*/forest.parquet"))
    chosen = (there[-1] if there else None) if iteration is None else iteration
    if chosen is None or chosen not in there:
        which = f"iteration {chosen} of " if chosen is not None else ""
        span = f"there are {there[0]} to {there[-1]}" if there else "no iteration has finished yet"
        raise UserError(f"{which}run {run.run_id} has no forest; {span}")
    forest = read_forest(run.iteration(chosen) / "forest.parquet")
    ids = {node.prompt_id for node in forest.nodes}
    if prompt is not None and prompt not in ids:
        raise UserError(f"--prompt {prompt}: no such prompt in iteration {chosen}; one that is there: {min(ids)}")
    linked = [k for k in there if every or k == chosen or (run.iteration(k) / "trees.html").exists()]
    others = (
        [(k, f"../{run.iteration(k).name}/trees.html") for k in linked] if output is None and len(linked) > 1 else []
    )
    for number in set(linked) - {chosen} if every else ():
        write_trees(run, number, read_forest(run.iteration(number) / "forest.parquet"), others=others)
    page = write_trees(run, chosen, forest, output, others)
    address = page.resolve().as_uri() + (f"#{quote(prompt)}" if prompt else "")
    _show(f"{len(forest.by_tree(forest.leaves_L))} trees", address, show)


def report(
    name: RunArgument, output: OutputOption = None, show: OpenOption = True, runs_dir: RunsOption = Path("runs")
) -> None:
    """Write curves, budget, contrast, calibration, times and the best trees of a run as one HTML page, and open it."""
    from tasks.report import write_report
    from tasks.run import find_run

    run = find_run(name, runs_dir)
    _show(f"{len(run.metrics())} iterations", write_report(run, output).resolve().as_uri(), show)


def _show(what: str, address: str, show: bool) -> None:
    console.print(f"{what}: {address}", highlight=False, soft_wrap=True)
    if show:
        webbrowser.open(address)
