"""What every task of an iteration has in common: a Prefect task around a stage whose manifest entry is written last.

A stage's inputs and outputs are files. Its entry in the iteration's manifest holds their content hashes; a rerun keeps
the outputs where all hashes match and makes them anew where they do not. So a run killed anywhere continues where it
stood: Prefect schedules and shows, the manifest is the truth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, cast

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE

from components.config import Params
from components.errors import UserError
from components.storage import content_hash, read_sealed, write_sealed
from tasks.run import Run

P = ParamSpec("P")
logger = logging.getLogger("trace")


class Listener(Protocol):
    """Who wants to hear how a run goes on, in the same process."""

    def stage(self, name: str, done: int, total: int) -> None:
        """A stage has done so many steps of `total` (0 where the number is not known)."""

    def iteration(self, line: dict[str, Any]) -> None:
        """An iteration ended with these metrics."""


listeners: list[Listener] = []


@dataclass(frozen=True)
class Context:
    """What a stage knows of its place.

    Attributes:
        run: The run.
        iteration: Number of the iteration, from 0; also the version of the policy that samples in it.
        name: The stage's name in the manifest and in `time/<name>`.
        output: Where the stage writes its main output.
    """

    run: Run
    iteration: int
    name: str
    output: Path

    @property
    def params(self) -> Params:
        return self.run.params

    @property
    def folder(self) -> Path:
        return self.run.iteration(self.iteration)

    def counter(self, total: int) -> Callable[[int], None]:
        """A function that is told how many more of `total` are done."""
        done = 0

        def more(count: int) -> None:
            nonlocal done
            done += count
            self.report(done, total)

        return more

    def report(self, done: int, total: int) -> None:
        for listener in listeners:
            listener.stage(self.name, done, total)


def stage(
    title: str, output: str, also: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[Context, P], dict[str, float]]], Callable[Concatenate[Path, int, P], Path]]:
    """Makes a Prefect task of a function that writes `context.output` and returns flat metrics.

    The task takes the run's folder, the iteration and, by keyword, the stage's inputs: paths (or lists of paths), whose
    contents decide whether the stage must run. It returns the path of its output.

    Args:
        title: Name shown in Prefect.
        output: File or folder that the stage writes, relative to the iteration's folder.
        also: Further outputs.
    """

    def decorate(
        work: Callable[Concatenate[Context, P], dict[str, float]],
    ) -> Callable[Concatenate[Path, int, P], Path]:
        name = title.replace(" ", "_")

        @task(name=title, task_run_name=title, description=work.__doc__, cache_policy=NO_CACHE, persist_result=False)
        def run_stage(run_path: Path, iteration: int, *args: P.args, **inputs: P.kwargs) -> Path:
            run = Run(Path(run_path))
            torch.set_num_threads(run.params.run.threads)  # sums depend on it, so results do
            context = Context(run, iteration, name, run.iteration(iteration) / output)
            outputs = [context.output, *(context.folder / other for other in also)]
            hashes = {key: _hash(value) for key, value in inputs.items()}
            if is_done(context.folder, name, hashes):
                logger.info("%s: kept from before", title)
                return context.output
            context.report(0, 0)
            start = time.perf_counter()
            metrics = work(context, *args, **inputs)
            entry = {
                "inputs": hashes,
                "outputs": {str(path.relative_to(context.folder)): content_hash(path) for path in outputs},
                "seconds": time.perf_counter() - start,
                "metrics": metrics,
            }
            write_sealed(context.folder / "manifest.json", read_stages(context.folder) | {name: entry})
            return context.output

        return cast(Callable[Concatenate[Path, int, P], Path], run_stage)

    return decorate


def read_stages(folder: Path) -> dict[str, Any]:
    """The manifest entries of an iteration, by stage; none, with a warning, where the manifest is damaged."""
    path = folder / "manifest.json"
    try:
        return read_sealed(path) if path.exists() else {}
    except UserError:
        logger.warning("%s is damaged; what it vouched for is made anew where it is needed", path)
        return {}


def is_done(folder: Path, name: str, input_hashes: dict[str, Any]) -> bool:
    """Whether a stage ran on the same inputs and its outputs are whole; says so where they are not."""
    entry = read_stages(folder).get(name)
    if entry is None or entry["inputs"] != input_hashes:
        return False
    for relative in entry["outputs"]:
        if not is_whole(folder, name, relative):
            logger.warning("%s is missing or damaged; the stage %s makes it anew", folder / relative, name)
            return False
    return True


def is_whole(folder: Path, name: str, relative: str) -> bool:
    """Whether an output of a stage is there as the manifest has it."""
    entry, path = read_stages(folder).get(name, {"outputs": {}}), folder / relative
    return path.exists() and content_hash(path) == entry["outputs"].get(relative)


def _hash(value: Any) -> Any:
    if isinstance(value, Path):
        if not value.exists():
            raise UserError(f"{value} is missing; restore it, or start a new run")
        return content_hash(value)
    return [_hash(v) for v in value] if isinstance(value, list | tuple) else value
