"""What every stage of an iteration has in common: it is a Prefect task, and writes its entry in the manifest last.

A stage's inputs and outputs are files. Its entry in the iteration's manifest.json holds their content hashes. When a
run is continued, a stage whose hashes all match is skipped, and any other runs again. So a run that was killed at any
point continues from there. Prefect schedules and shows; the manifest decides.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, cast

from prefect import runtime, task
from prefect.cache_policies import NO_CACHE

from components.errors import UserError
from components.params.root import Params
from components.secrets import MaskSecrets
from components.storage import content_hash, read_sealed, unreadable, write_sealed
from tasks.run import Run
from tasks.store import has_hash, is_there, store_of

P = ParamSpec("P")
logger = logging.getLogger("trace")
logger.addFilter(MaskSecrets())

Shard = tuple[int, int]  # a part of an iteration's active prompts: its index from 0, and the number of shards
WHOLE: Shard = (0, 1)

# New objects after which Python's garbage collector looks for cycles. A forest is many objects without any: at Python's
# default of 700 the search takes a seventh of an iteration, and half of each conversion between nodes and tables.
COLLECT = 200_000


class Listener(Protocol):
    """Receives the progress of a run in this process; the stages of shards call it from their own threads."""

    def stage(self, name: str, done: int, total: int, shard: Shard = WHOLE) -> None:
        """A stage has done `done` steps of `total` (0: not known), in a shard."""

    def iteration(self, line: dict[str, Any]) -> None:
        """An iteration ended with these metrics."""


listeners: list[Listener] = []
stopping = threading.Event()  # set when the run ends early: stages in other threads end at their next report


class Stopped(Exception):
    """Ends a stage of a run that is ending."""


def clear_stop() -> None:
    """Clears `stopping`, which an earlier run of this process may have left set.

    A function, so that the flow need not name the event: Dask pickles a deployment's flow, and an event holds a lock.
    """
    stopping.clear()


@dataclass(frozen=True)
class Context:
    """Where a stage works.

    Attributes:
        run: The run.
        iteration: Number of the iteration, from 0; also the version of the policy that samples in it.
        name: The stage's name in the manifest and in `time/<name>`.
        output_name: Its main output, relative to `folder`.
        shard: The part of the iteration's active prompts that the stage works on.
    """

    run: Run
    iteration: int
    name: str
    output_name: str
    shard: Shard = WHOLE

    @property
    def params(self) -> Params:
        return self.run.params

    @property
    def folder(self) -> Path:
        """Where the stage's outputs and its manifest entry go: each shard has its own folder and manifest."""
        index, count = self.shard
        whole = self.run.iteration(self.iteration)
        return whole if count == 1 else whole / "shards" / f"{index + 1:02d}-of-{count:02d}"

    @property
    def output(self) -> Path:
        """Where the stage writes its main output."""
        return self.folder / self.output_name

    def counter(self, total: int) -> Callable[[int], None]:
        """A function to call with the number of further steps done of `total`."""
        done = 0

        def more(count: int) -> None:
            nonlocal done
            done += count
            self.report(done, total)

        return more

    def report(self, done: int, total: int) -> None:
        """Passes the progress to all listeners; raises `Stopped` where the run is ending."""
        if stopping.is_set():
            raise Stopped
        for listener in listeners:
            listener.stage(self.name, done, total, self.shard)


def stage(
    title: str, output: str, also: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[Context, P], dict[str, float]]], Callable[Concatenate[Path, int, P], Path]]:
    """Makes a Prefect task of a function that writes `context.output` and returns flat metrics.

    The task takes the run's folder, the iteration and, by keyword, the stage's inputs: paths, or lists of paths, whose
    contents decide whether the stage must run. It returns the path of its output. An input named `shard` is the part of
    the active prompts that the stage works on, in a folder of its own.

    Args:
        title: Name shown in Prefect.
        output: File or folder that the stage writes, relative to the iteration's folder.
        also: Further outputs.
    """

    def decorate(
        work: Callable[Concatenate[Context, P], dict[str, float]],
    ) -> Callable[Concatenate[Path, int, P], Path]:
        name = title.replace(" ", "_")

        def run_name() -> str:
            return titled(title, runtime.task_run.parameters.get("inputs", {}).get("shard", WHOLE))

        @task(name=title, task_run_name=run_name, description=work.__doc__, cache_policy=NO_CACHE, persist_result=False)
        def run_stage(run_path: Path, iteration: int, *args: P.args, **inputs: P.kwargs) -> Path:
            run = Run(Path(run_path))
            gc.set_threshold(COLLECT)
            context = Context(run, iteration, name, output, cast(Shard, inputs.get("shard", WHOLE)))
            outputs = [context.output, *(context.folder / other for other in also)]
            hashes = {key: _hash(value) for key, value in inputs.items()}
            if is_done(context.folder, name, hashes):
                logger.info("%s: already done", titled(title, context.shard))
                return context.output
            context.report(0, 0)
            began, start = time.time(), time.perf_counter()
            metrics = work(context, *args, **inputs)
            entry = {
                "inputs": hashes,
                "outputs": {str(path.relative_to(context.folder)): content_hash(path) for path in outputs},
                "began": began,
                "seconds": time.perf_counter() - start,
                "metrics": metrics,
            }
            write_sealed(context.folder / "manifest.json", read_stages(context.folder) | {name: entry})
            if store := store_of(run.path):
                store.notify(context.folder / "manifest.json")
            return context.output

        return cast(Callable[Concatenate[Path, int, P], Path], run_stage)

    return decorate


def titled(title: str, shard: Shard) -> str:
    """The title of a stage, with its shard if there are several."""
    index, count = shard
    return title if count == 1 else f"{title} {index + 1}/{count}"


def read_stages(folder: Path) -> dict[str, Any]:
    """The manifest entries of an iteration by stage; none, with a warning, where the manifest is damaged."""
    path = folder / "manifest.json"
    try:
        return read_sealed(path) if path.exists() else {}
    except UserError:
        logger.warning("%s is damaged; stages whose results are needed run again", path)
        return {}


def is_done(folder: Path, name: str, input_hashes: dict[str, Any]) -> bool:
    """Whether a stage ran on these inputs and its outputs are intact; logs a warning where they are not."""
    entry = read_stages(folder).get(name)
    if entry is None or entry["inputs"] != input_hashes:
        return False
    for relative, expected in entry["outputs"].items():
        if not _is_intact(folder / relative, expected):
            logger.warning("%s is missing or damaged; the stage %s runs again", folder / relative, name)
            return False
    return True


def is_whole(folder: Path, name: str, relative: str) -> bool:
    """Whether an output of a stage exists as the manifest has it."""
    expected = read_stages(folder).get(name, {"outputs": {}})["outputs"].get(relative)
    return expected is not None and _is_intact(folder / relative, expected)


def _is_intact(path: Path, expected: str) -> bool:
    """Whether a path has this hash and can be read: the hash may be that of a file that was already cut."""
    return has_hash(path, expected) and unreadable(path) is None


def _hash(value: Any) -> Any:
    """The content hash of an input that is a path, or those of a list of paths; another value stands for itself."""
    if isinstance(value, Path):
        if not is_there(value):
            raise UserError(f"{value} is missing; restore it, or start a new run")
        return content_hash(value)
    return [_hash(v) for v in value] if isinstance(value, list | tuple) else value
