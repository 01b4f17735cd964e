"""What a run shows on the terminal: a line an iteration, a bar for each stage in progress, a table at the end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from components.params.root import Params


class Display:
    """Listens to the run of this process while a `with` block lasts.

    Args:
        console: Where to draw.
        params: Those of the run.
    """

    def __init__(self, console: Console, params: Params) -> None:
        self.console, self.params = console, params
        self._progress = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._run = self._progress.add_task("iterations", total=params.run.iterations, visible=False)
        self._lock = threading.Lock()
        self._bars: dict[str, TaskID] = {}
        self._shards: dict[str, dict[int, tuple[int, int]]] = {}  # of each stage in progress: done and total by shard
        self.stage("starting", 0, 0)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str, done: int, total: int, shard: tuple[int, int] = (0, 1)) -> None:
        """Shows the sums over the shards that a stage has reached; stages of shards stand below each other."""
        index, count = shard
        with self._lock:
            if count == 1:
                for other in self._bars.keys() - {name}:
                    self._progress.remove_task(self._bars.pop(other))
                    del self._shards[other]
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name.replace("_", " "), total=None)
                self._shards[name] = {}
            self._shards[name][index] = (done, total)
            done, total = (sum(column) for column in zip(*self._shards[name].values(), strict=True))
            self._progress.update(self._bars[name], completed=done, total=total or None)

    def iteration(self, line: dict[str, Any]) -> None:
        from tasks.summary import one_line

        self.console.print(one_line(line, self.params), highlight=False)
        self._progress.update(self._run, completed=line["iteration"] + 1, visible=True)


def show_summary(console: Console, summary: dict[str, Any], path: Path) -> None:
    """The table at the end of a run, and where to look further."""

    def number(key: str) -> str:
        return "–" if summary[key] is None else f"{summary[key]:.3f}"

    table = Table(
        title=f"{summary['run_id']}: {summary['iterations']} iterations, arm {summary['arm']}", title_justify="left"
    )
    for column in ("", "first", "last", "mean"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("accuracy on held-out prompts", number("accuracy/first"), number("accuracy/last"), "")
    ratios = [number(f"effective_ratio/prompts{when}") for when in ("/first", "/last", "")]
    table.add_row("effective ratio, by prompt", *ratios)
    table.add_row("continuations that flip the outcome", "", "", number("tree/flip_rate"))
    console.print(table)
    if why := summary["nothing_learnt"]:
        console.print(f"[yellow]Warning:[/] {why}", highlight=False)
    units, factual, continuations = (summary[f"budget/{k}"] for k in ("units", "factual_rollouts", "continuations"))
    console.print(
        f"The budget: {units:,.0f} units = {factual:,.0f} factual rollouts + {continuations:,.0f} continuations at ½; "
        f"{summary['budget/leaves']:,.0f} leaves, {summary['tokens/generated']:,.0f} sampled tokens.",
        highlight=False,
    )
    console.print("Look further")
    for what, why in (
        (f"{path}/metrics.jsonl", "one line an iteration"),
        (f"{path}/report.html", "the run on one page"),
        (f"{path}/iterations/", "every tree, as Parquet"),
        (f"trace evaluate {summary['run_id']}", "accuracy on the test prompts"),
        ("make up", "the Prefect and MLflow pages, with this run"),
    ):
        console.print(f"  {what:44}  {why}", highlight=False, soft_wrap=True)
