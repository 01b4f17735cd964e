"""`trace view`: an iteration's forest as a page to read, in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from components.errors import UserError

console = Console()


def view(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Run id, path, or 'latest'.")],
    iteration: Annotated[int | None, typer.Option(min=0, help="Iteration; by default the newest finished one.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt id of the tree to show first.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the page, instead of into the run.")] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")] = Path("runs"),
) -> None:
    """Write the trees of an iteration as one self-contained HTML page, and open it."""
    from components.storage import write_text
    from components.tracking.viewer import forest_page
    from tasks.inputs import read_forest
    from tasks.run import find_run

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
    page = output or run.iteration(chosen) / "trees.html"
    write_text(page, forest_page(f"Run {run.run_id}, iteration {chosen}", forest))
    address = page.resolve().as_uri() + (f"#{quote(prompt)}" if prompt else "")
    console.print(f"{len(forest.by_tree(forest.leaves_L))} trees: {address}", highlight=False, soft_wrap=True)
    if show:
        webbrowser.open(address)
