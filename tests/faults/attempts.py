"""Training in child processes that are killed: after a while, or at a chosen event in the file system.

A child is forked from a process that has imported everything, so that an attempt costs no more than its work. It runs
the flow itself, as plain functions or, with `prefect`, the command under the server that PREFECT_API_URL names. SIGKILL
goes to its whole group.
"""

from __future__ import annotations

import builtins
import io
import json
import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from components.errors import UserError
from components.storage import content_hash

PRELOADED = "tests.faults.preload"  # a process that imported it, and never ran a backward pass, can be forked itself
EVENTS = ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "symlink")


@dataclass(frozen=True)
class Kill:
    """When a child dies.

    Attributes:
        after: Seconds after its first stage began.
        number: The event in the file system, counted from 0, before which it dies.
        event: The kind and the role of the event before which it dies.
        torn: Half of the file that is about to be synchronised is lost, as when the kill had come in mid-write.
    """

    after: float | None = None
    number: int | None = None
    event: tuple[str, str] | None = None
    torn: bool = False


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    Attributes:
        code: 0: done; 2: one line of error; 1: a traceback; -9: killed.
        said: Its output.
        stage: The last stage that began.
        event: The last event in the file system, kind and role: the one that the kill forestalled.
        events: All of them.
    """

    code: int
    said: str
    stage: str
    event: tuple[str, str]
    events: list[tuple[str, str]]


def role(path: str) -> str:
    """What a file is, whichever the iteration, the process and the hash of the settings."""
    path = re.sub(r"\.([^/]+)\.(tmp|old)-\d+", r"\1~\2", path)
    path = re.sub(r"^runs/[^/.~]+(/|$)", r"run\1", path)
    path = re.sub(r"iterations/\d+", "iterations/*", path)
    return re.sub(r"\.latest-\d+", "latest~tmp", re.sub(r"/[0-9a-f]{12}", "/*", path))


def attempt(root: Path, kill: Kill | None = None, run_id: str = "r", prefect: bool = False) -> Ending:
    """Runs `train --run-id run_id` in `root`, which holds params.yaml, until it ends or is killed."""
    context = multiprocessing.get_context("fork" if PRELOADED in sys.modules else "forkserver")
    context.set_forkserver_preload([PRELOADED])
    for name in ("said", "position", "events"):
        (root / name).write_bytes(b"")
    child = context.Process(target=_child, args=(str(root), asdict(kill or Kill()), run_id, prefect))
    child.start()
    if kill is not None and kill.after is not None:
        while child.is_alive() and not (root / "position").read_bytes():
            child.join(0.005)
        child.join(kill.after)
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)
    child.join()
    position = json.loads((root / "position").read_text() or '["start", ["", ""]]')
    events = [tuple(line.split("\t")) for line in (root / "events").read_text().splitlines()]
    return Ending(child.exitcode, (root / "said").read_text(), position[0], tuple(position[1]), events)


def project(folder: Path, tree: dict[str, Any], data_dir: Path | None = None) -> Path:
    """A folder with params.yaml, as a clone is."""
    folder.mkdir(parents=True, exist_ok=True)
    if data_dir is not None:
        tree = tree | {"run": tree.get("run", {}) | {"data_dir": str(data_dir)}}
    (folder / "params.yaml").write_text(yaml.safe_dump(tree))
    return folder


def left_behind(run: Path) -> dict[str, Any]:
    """Every file of a run by its content, times taken out: what two undisturbed runs have in common."""
    return {
        str(path.relative_to(run)): _content(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def _content(path: Path) -> Any:
    if path.name in ("metrics.json", "summary.json"):
        return _timeless(json.loads(path.read_text()))
    if path.name == "metrics.jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name == "manifest.json":
        entries = json.loads(path.read_text())
        kept = {key: value for key, value in entries.items() if key not in ("seal", "params", "mlflow_run_id")}
        if "run_id" in kept:
            return kept
        return {stage: _timeless(entry) | {"outputs": list(entry["outputs"])} for stage, entry in kept.items()}
    if path.name == "params.yaml":
        tree = yaml.safe_load(path.read_text())
        return tree | {"run": {key: value for key, value in tree["run"].items() if not key.endswith("_dir")}}
    return "a page" if path.name == "report.html" else content_hash(path)


def _timeless(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {
        k: _timeless(v)
        for k, v in tree.items()
        if not k.startswith("time") and k not in ("began", "seconds", "outputs", "tokens/per_s")
    }


def _child(root: str, kill: dict[str, Any], run_id: str, prefect: bool) -> None:
    os.setsid()
    os.chdir(root)
    output = os.open("said", os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = os.fdopen(output, "a", buffering=1)  # a test runner may have put its own there
    code = 1
    try:
        _Trap(Path(root).resolve(), Kill(**kill)).install()
        _train(run_id, prefect)
        code = 0
    except UserError as error:
        print(f"Error: {error}", flush=True)
        code = 2
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _train(run_id: str, prefect: bool) -> None:
    if prefect:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        from flows.cli import main

        sys.argv = ["trace", "train", "--run-id", run_id]
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):  # it was imported before
            main()
        return
    import logging

    logging.basicConfig(level=logging.WARNING, format="Warning: %(message)s", force=True)
    plain_flow()(params="params.yaml", run_id=run_id)


def plain_flow() -> Callable[..., str]:
    """The flow `trace` as a plain function: the same order of the same stages, without a Prefect server."""
    from prefect import Flow, Task

    import flows.shards
    import flows.train

    for module in (flows.train, flows.shards):
        for name, value in list(vars(module).items()):
            if isinstance(value, Flow | Task):
                setattr(module, name, value.fn)
    plain: Callable[..., str] = flows.train.trace
    return plain


class _Trap:
    """Sees every change that Python makes to files below `runs` and `data`, and ends the process before one of them."""

    def __init__(self, root: Path, kill: Kill) -> None:
        self.root, self.kill, self.count, self.where = root, kill, 0, "start"
        self.position = os.open("position", os.O_WRONLY)
        self.events = os.open("events", os.O_WRONLY)

    def install(self) -> None:
        from tasks.stage import listeners

        listeners.append(self)  # type: ignore[arg-type]
        for name in EVENTS:
            setattr(os, name, self._watch(name, getattr(os, name)))
        builtins.open = io.open = self._watch_open(io.open)  # type: ignore[assignment]

    def stage(self, name: str, done: int, total: int, shard: tuple[int, int] = (0, 1)) -> None:
        if name != self.where:
            self.where = name
            self._note("", "")

    def iteration(self, line: dict[str, Any]) -> None:
        self.stage(f"after iteration {line['iteration']}", 0, 0)

    def _watch(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *rest: Any, **named: Any) -> Any:
            if name == "symlink":
                self._happens(name, os.fspath(rest[0]))
            elif isinstance(path, int):
                self._happens(name, os.readlink(f"/proc/self/fd/{path}"))
            elif (folder := named.get("dir_fd")) is not None:
                self._happens(name, f"{os.readlink(f'/proc/self/fd/{folder}')}/{os.fspath(path)}")
            else:
                self._happens(name, os.fspath(path))
            return original(path, *rest, **named)

        return watched

    def _watch_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if set(mode) & set("wax+") and not isinstance(file, int):
                self._happens("open", os.fspath(file))
            return original(file, mode, *rest, **named)

        return watched

    def _happens(self, kind: str, path: str) -> None:
        relative = os.path.relpath(os.path.join(self.root, path), self.root)
        if not relative.startswith(("runs", "data")):
            return
        what = role(relative)
        self._note(kind, what)
        os.write(self.events, f"{kind}\t{what}\n".encode())
        if self.kill.number == self.count or self.kill.event == (kind, what):
            if self.kill.torn and kind == "fsync" and os.path.isfile(path):
                size = os.path.getsize(path)
                os.truncate(path, size // 2 if "~tmp" in what else max(0, size - 9))
            os.killpg(0, signal.SIGKILL)
        self.count += 1

    def _note(self, kind: str, what: str) -> None:
        text = json.dumps([self.where, [kind, what]]).ljust(300)
        os.pwrite(self.position, text.encode(), 0)
