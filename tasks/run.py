"""A run on disk: its folder, its parameters, its manifest, and the lock that lets one process at a time write to it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from components.allocation.arms import ARMS
from components.environments import ENVIRONMENTS
from components.errors import UserError
from components.params.load import load_params
from components.params.root import Params, compose, flatten, may_change
from components.policy.base import check_checkpoint
from components.policy.engines import ENGINES
from components.policy.trainers import TRAINERS
from components.predictor.models import PREDICTORS
from components.storage import content_hash, read_json, read_sealed, sweep, write_sealed, write_text
from tasks.store import file_system, held, open_copy

logger = logging.getLogger("trace")

_noting = threading.Lock()


class EarlierVersionError(UserError):
    """A run was begun by a version of this program whose parameters this one does not know."""


@dataclass(frozen=True)
class Run:
    """A run's folder, `runs/<run_id>`."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @cached_property
    def params(self) -> Params:
        path = self.path / "params.yaml"
        return _params(path, content_hash(path)) if path.exists() else load_params(path)

    @property
    def manifest(self) -> dict[str, Any]:
        return read_sealed(self.path / "manifest.json")

    def note(self, **values: Any) -> None:
        """Sets keys of the manifest."""
        with _noting:  # the thread that writes to MLflow notes its run id here
            write_sealed(self.path / "manifest.json", self.manifest | values)

    def iteration(self, number: int) -> Path:
        return self.path / "iterations" / f"{number:04d}"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def accuracy_after(self, iterations: int) -> float | None:
        """Accuracy on held-out prompts of the policy after so many iterations; None if it was not evaluated."""
        path = self.iteration(iterations) / "evaluation.json"
        return float(read_json(path)["accuracy"]) if path.exists() else None

    def metrics(self, start: int = 0) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl from number `start` on; a last line that was only half written is left out.

        Raises:
            UserError: if another line is damaged; the message names it.
        """
        rows: list[dict[str, Any]] = []
        if not self.metrics_path.exists():
            return rows
        with self.metrics_path.open("rb") as stream:
            lines = list(islice(stream, start, None))
        for number, line in enumerate(lines, start=start + 1):
            try:
                row = json.loads(line)
                rows.append({"iteration": row["iteration"], **row})
            except (ValueError, TypeError, KeyError):
                if number < start + len(lines):
                    advice = "continue the run, which writes the file again"
                    raise UserError(f"{self.metrics_path}, line {number} is damaged; {advice}") from None
        return rows


@lru_cache(maxsize=8)
def _params(path: Path, content: str) -> Params:
    """Cached: every stage asks for them, and reading YAML takes 12 ms."""
    return load_params(path)


def open_run(params: Params, run_id: str, anew: bool = False) -> Run:
    """Makes a run's folder, or opens it to continue.

    Args:
        params: The run's parameters.
        run_id: Its name.
        anew: Whether a run that is finished, or has other parameters, is emptied first. One that was interrupted is
            continued all the same.

    Raises:
        UserError: if the id is not a file name, the folder cannot be written, or it holds a run with other parameters;
            or if `anew` is given for a run in a store.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run_id) or run_id == "latest":
        raise UserError(
            f"--run-id {run_id!r}: use up to 100 letters, digits, dots, dashes and underscores (and not 'latest')"
        )
    if anew and params.run.store is not None:
        raise UserError("--anew empties a run on this machine, not in run.store; choose another --run-id")
    _check_available(params)
    runs_dir = Path(params.run.runs_dir)
    run = Run((runs_dir / run_id).absolute())
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {run.path}: {error.strerror}; choose another run.runs_dir or --run-id") from error
    with lock(run, params.run.store):  # nothing of a run that another process writes may change
        sweep(run.path)
        sweep(Path(params.run.data_dir), age=86400)  # in seconds: other runs may be writing there
        if anew and _is_over(run, params):
            for path in run.path.iterdir():
                if path.name != ".lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        manifest = _readable_manifest(run)
        _check_same(run, manifest, params)
        tree = params.model_dump()
        write_text(run.path / "params.yaml", yaml.safe_dump(tree, sort_keys=False))
        write_sealed(
            run.path / "manifest.json", {"run_id": run_id, "mlflow_run_id": None} | manifest | {"params": tree}
        )
        _point_latest_to(run.path)
    return run


def _is_over(run: Run, params: Params) -> bool:
    """Whether a run is finished, or was begun with other parameters than these."""
    if (run.path / "summary.json").exists():
        return True
    try:
        began = _begun_with(run, _readable_manifest(run))
    except EarlierVersionError:
        return True
    return bool(began) and bool(_differences(began[0], params))


def _readable_manifest(run: Run) -> dict[str, Any]:
    """The run's manifest; empty where there is none or, with a warning, where it is damaged."""
    if not (run.path / "manifest.json").exists():
        return {}
    try:
        return run.manifest
    except UserError as error:
        logger.warning("%s; going on without it (MLflow gets a new run)", str(error).partition(";")[0])
        return {}


def _begun_with(run: Run, manifest: dict[str, Any]) -> list[Params]:
    """The parameters that a run was begun with, as the manifest has them, and as params.yaml has them.

    Both are kept so that one may be lost, and a change to one is noticed.

    Raises:
        EarlierVersionError: if they are those of another version of this program.
        UserError: if params.yaml cannot be read and the manifest does not have them either.
    """
    began, path = [], run.path / "params.yaml"
    if "params" in manifest:
        try:
            began.append(compose(manifest["params"]))
        except UserError as error:  # the manifest is whole, as its hash says, so it is not damage
            raise EarlierVersionError(
                f"run {run.run_id} was begun by an earlier version of this program, whose parameters this one does not "
                f"know ({str(error).partition(';')[0]:.120}, ...); continue it, or look at it, with that version; to "
                "train with this one, choose another --run-id, or replace the run with --anew"
            ) from error
    if path.exists():
        try:
            began.append(load_params(path))
        except UserError as error:
            if not began:
                fault = str(error).partition(";")[0]
                raise UserError(f"{fault}; restore this file, or the manifest.json beside it, which is lost") from error
            logger.warning("%s is damaged (%s); it is written again from manifest.json", path, error)
    return began


def _check_same(run: Run, manifest: dict[str, Any], params: Params | None = None) -> None:
    """Raises a UserError where the run's own records differ, or `params` would compute something else than they say."""
    began = _begun_with(run, manifest)
    if not began:
        if (run.path / "iterations").exists():
            raise UserError(f"{run.path} holds iterations but no params.yaml; restore it, or choose another --run-id")
        return
    if shown := _changed(began[0], began[-1], "in manifest.json", "in it"):
        changed = f"{run.path / 'params.yaml'} is not what the run began with"
        raise UserError(f"{changed} ({shown}); restore it, or choose another --run-id")
    if params is None:
        return
    if shown := _changed(began[0], params, "there", "here"):
        raise UserError(
            f"run {run.run_id} exists in {run.path.parent} with other parameters ({shown}); "
            "choose another --run-id, or these parameters"
        )
    if (run.iteration(params.run.iterations) / "metrics.json").exists():
        raise UserError(f"run.iterations={params.run.iterations}: run {run.run_id} has already gone further")


def _check_available(params: Params) -> None:
    """Raises a UserError, before any work, where the parameters name something that this machine does not have."""
    if params.run.store is not None:
        file_system(params.run.store)
    path, environment = params.policy.path, ENVIRONMENTS[params.environment.name]
    if path is None and environment.needs_model:
        raise UserError(
            f"environment.name={params.environment.name!r} needs a real model: set policy.path to a folder with a "
            "Hugging Face checkpoint (the tiny policy knows only tasks whose every word is known)"
        )
    if path is not None:
        check_checkpoint(path, "policy.path")
    for kind in (
        environment,
        ENGINES[params.engine.name],
        ARMS[params.allocation.arm],
        PREDICTORS[params.predictor.name],
        TRAINERS[params.update.name],
    ):
        kind.check(params)


@contextmanager
def lock(run: Run, store: str | None = None) -> Iterator[None]:
    """Locks the run for this process; the system releases the lock when the process ends, also when it is killed.

    With a store, the run's copy there is locked as well, fetched before and uploaded after.

    Raises:
        UserError: if another process holds it, or the store cannot be reached.
    """
    try:
        stream = (run.path / ".lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write {run.path / '.lock'}: {error.strerror}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"run {run.run_id} is being written by another process; wait for it, or choose another --run-id"
            ) from None
        with held(run.path, store):
            yield


def is_locked(run: Run) -> bool:
    """Whether a process, this one included, has locked the run."""
    try:
        with lock(run):
            return False
    except UserError:
        return True


def find_run(name: str, runs_dir: Path) -> Run:
    """An existing run by id, path, or URL in a store (``s3://bucket/runs/ID``), from which it is fetched to `runs_dir`.

    Raises:
        EarlierVersionError: if an earlier version of this program began it.
        UserError: if there is none (the message lists some that there are), or its parameters were changed.
    """
    if "://" in name:
        found = [Run(open_copy(name, runs_dir))]
    else:
        found = [Run(path.resolve()) for path in (Path(name), runs_dir / name) if (path / "manifest.json").is_file()]
    if found:
        _check_same(found[0], _readable_manifest(found[0]))
        return found[0]
    known = sorted(p.parent.name for p in runs_dir.glob("*/manifest.json") if not p.parent.is_symlink())
    raise UserError(
        f"no run {name!r} in {runs_dir}/; there is {', '.join(known[-5:]) or 'none yet: start one with trace train'}"
    )


def _changed(old: Params, new: Params, there: str, here: str) -> str:
    """The keys of `_differences`, as a text with both values."""
    changes = _differences(old, new)
    return ", ".join(f"{key} is {a!r} {there} and {b!r} {here}" for key, (a, b) in changes.items())


def _differences(old: Params, new: Params) -> dict[str, tuple[Any, Any]]:
    """The keys that decide what a run computes and differ, with both values."""
    a, b, free = flatten(old.model_dump()), flatten(new.model_dump()), may_change(old) | may_change(new)
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key) and key not in free}


def _point_latest_to(path: Path) -> None:
    link = path.parent / "latest"
    if link.exists() and not link.is_symlink():
        logger.warning("%s is not a link that a run made; it is left as it is and does not name this run", link)
        return
    temporary = path / f".latest.tmp-{os.getpid()}"  # in the run's folder, where `sweep` finds it after a kill
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(link)
