"""Training that is killed again and again ends in the files of training that was left alone: a hundred kills, counted.

Three ways to die, always by SIGKILL to the whole process group: before an event in the file system, once for every kind
of event at every kind of file of a run (where it is a synchronisation, half of the file is lost as well); at a random
moment; and among the first events of a process, while it resumes. Some of the runs are the command itself under a
Prefect server. After every kill the same command is given again. At the end all files are compared. Data and the first
policy are made once; tests/faults/test_kills.py kills in their making.

Run from the repository: OMP_NUM_THREADS=1 nice -n 10 python -m bench.kills [folder] ["at every event"]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tests.faults.preload  # noqa: F401  # children are forked from this process
from bench.results import record
from tests.faults.attempts import Ending, Kill, attempt, left_behind, project
from tests.faults.runs import CAMPAIGNS

RANDOM, RESUMING = 12, 12


def main(folder: Path, only: str | None = None) -> None:
    kills: list[tuple[str, str, Ending]] = []
    wrong: list[str] = []
    for number, (name, tree) in enumerate(CAMPAIGNS.items()):
        alone = project(folder / f"{number}-alone", tree)
        end = attempt(alone)
        start = time.perf_counter()
        if end.code or attempt(alone, run_id="timed").code:
            raise SystemExit(end.said)
        seconds, wanted = time.perf_counter() - start, left_behind(alone / "runs" / "r")
        for how, plan in _plans(end.events, seconds, np.random.default_rng(number), every_event=number == 0):
            if only in (None, how):
                place = folder / f"{number}-{how.replace(' ', '-')}"
                endings, faults = _endure(place, tree, alone / "data", plan, wanted, how == "through the command")
                kills += [(name, how, ending) for ending in endings]
                wrong += [f"{name}, {how}, {fault}" for fault in faults]
                print(f"{name}, {how}: {len(endings)} of {len(plan)} kills, {len(faults)} faults", flush=True)
    _tell(kills, wrong)
    record({"kills": len(kills), "kills_faults": len(wrong)})


def _endure(
    place: Path, tree: dict[str, Any], data: Path, plan: list[Kill], wanted: dict[str, Any], prefect: bool
) -> tuple[list[Ending], list[str]]:
    """Kills one run after the other by the plan, each until it is done; returns the kills and what went wrong.

    A kill whose moment has passed in its run is tried once more in a fresh one.
    """
    endings: list[Ending] = []
    faults: list[str] = []
    number, fresh, waiting = 0, True, [*plan, None]
    while waiting:
        root, kill = project(place / str(number), tree, data), waiting[0]
        end = attempt(root, kill, prefect=prefect)
        if end.code == -9:
            endings.append(end)
            print(f"  {len(endings)}: {end.stage}, {' '.join(end.event)}", flush=True)
            fresh = False
            del waiting[0]
            continue
        if end.code:
            faults.append(f"{kill}: {end.said[-500:]}")
        else:
            found = left_behind(root / "runs" / "r")
            faults += [f"run {number}: {file}" for file in wanted.keys() | found if wanted.get(file) != found.get(file)]
        if fresh or kill is None:
            del waiting[0]
        number, fresh = number + 1, True
    return endings, faults


def _plans(
    events: list[tuple[str, str]], seconds: float, rng: np.random.Generator, every_event: bool
) -> Iterator[tuple[str, list[Kill]]]:
    if every_event:
        places: dict[tuple[str, str], list[int]] = {}
        for position, (kind, what) in enumerate(events):
            if what.startswith("run") and not (what.endswith("~tmp") and kind in ("open", "unlink", "mkdir")):
                places.setdefault((kind, what), []).append(position)  # the others find what their neighbours find
        chosen = sorted((int(rng.choice(where)), event) for event, where in places.items())
        yield "at every event", [Kill(event=event, torn=event[0] == "fsync") for _, event in chosen]
    yield "at random", [Kill(after=float(x)) for x in rng.uniform(0, seconds / 2, RANDOM)]
    yield "while resuming", [Kill(number=int(x), torn=bool(x % 2)) for x in rng.integers(0, 40, RESUMING)]
    if "PREFECT_API_URL" in os.environ:
        yield "through the command", [Kill(after=float(x)) for x in rng.uniform(0, seconds, RANDOM // 3)]


def _tell(kills: list[tuple[str, str, Ending]], wrong: list[str]) -> None:
    def table(title: str, rows: Any) -> None:
        print(f"\n| {title} | kills |\n| --- | --- |")
        for row, count in sorted(Counter(rows).items()):
            print(f"| {row} | {count} |")

    table("run", (f"{name}, {how}" for name, how, _ in kills))
    table("stage", (end.stage for *_, end in kills))
    table("file", (end.event[1] or "none yet" for *_, end in kills))
    table("event", (end.event[0] or "none" for *_, end in kills))
    print(f"\n{len(kills)} kills, {len(wrong)} differences", *wrong, sep="\n")


if __name__ == "__main__":
    from flows import services
    from flows.temporary_server import prefect_api

    with tempfile.TemporaryDirectory() as temporary:
        where = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).absolute()
        where.mkdir(parents=True, exist_ok=True)
        os.environ.update(services.environment(where))
        with prefect_api(where) as api:
            api.wait()
            main(where, *sys.argv[2:3])
