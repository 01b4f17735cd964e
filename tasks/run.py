"""A run on disk: its folder, its parameters, its manifest, and the one process that may write to it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from components.config import Params, load_params
from components.errors import MissingExtraError, UserError
from components.storage import content_hash, read_json, sweep, write_json, write_text

logger = logging.getLogger("trace")

# Keys that may change when a run is continued: they decide how long and how it runs, not what it computes.
MAY_CHANGE = (
    "run.iterations",
    "run.keep_policies",
    "run.runs_dir",
    "run.data_dir",
    "engine.shards",
    "tracking.mlflow",
    "tracking.experiment",
)


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
        path = self.path / "manifest.json"
        if not isinstance(manifest := read_json(path), dict):
            raise UserError(f"{path} is damaged: expected an object with keys, found {type(manifest).__name__}")
        return manifest

    def note(self, **values: Any) -> None:
        """Sets keys of the manifest."""
        write_json(self.path / "manifest.json", self.manifest | values)

    def iteration(self, number: int) -> Path:
        return self.path / "iterations" / f"{number:04d}"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def metrics(self) -> list[dict[str, Any]]:
        """The whole lines of metrics.jsonl; a last line torn by a kill is not one.

        Raises:
            UserError: if another line is damaged; the message names it.
        """
        lines = self.metrics_path.read_bytes().splitlines(keepends=True) if self.metrics_path.exists() else []
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                rows.append({"iteration": row["iteration"], **row})
            except (ValueError, TypeError, KeyError):
                if number < len(lines):
                    advice = "continue the run to have the file made anew"
                    raise UserError(f"{self.metrics_path}, line {number} is damaged; {advice}") from None
        return rows


@lru_cache(maxsize=8)
def _params(path: Path, content: str) -> Params:
    """Every stage asks for them, and reading YAML takes 12 ms."""
    return load_params(path)


def open_run(params: Params, run_id: str) -> Run:
    """Makes a run's folder, or opens it to continue.

    Raises:
        UserError: if the id is no file name, the folder cannot be written, or it holds other parameters.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run_id) or run_id == "latest":
        raise UserError(
            f"--run-id {run_id!r}: use up to 100 letters, digits, dots, dashes and underscores (and not 'latest')"
        )
    _check_available(params)
    runs_dir = Path(params.run.runs_dir)
    run = Run((runs_dir / run_id).absolute())
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {run.path}: {error.strerror}; choose another run.runs_dir or --run-id") from error
    with lock(run):  # nothing of a run that another process writes may change
        sweep(run.path)
        _check_same(run, params)
        write_text(run.path / "params.yaml", yaml.safe_dump(params.model_dump(), sort_keys=False))
        if not (run.path / "manifest.json").exists():
            write_json(run.path / "manifest.json", {"run_id": run_id, "mlflow_run_id": None})
        _point_latest_to(run.path)
    return run


def _check_same(run: Run, params: Params) -> None:
    """Refuses to continue a run with parameters that would compute something else."""
    if not (run.path / "params.yaml").exists():
        if (run.path / "iterations").exists():
            raise UserError(f"{run.path} holds iterations but no params.yaml; restore it, or choose another --run-id")
        return
    changes = _differences(load_params(run.path / "params.yaml"), params)
    changed = {key: values for key, values in changes.items() if key not in MAY_CHANGE}
    if changed:
        shown = ", ".join(f"{key} is {old!r} there and {new!r} here" for key, (old, new) in changed.items())
        raise UserError(
            f"run {run.run_id} exists in {run.path.parent} with other parameters ({shown}); "
            "choose another --run-id, or these parameters"
        )
    if (run.iteration(params.run.iterations) / "metrics.json").exists():
        raise UserError(f"run.iterations={params.run.iterations}: run {run.run_id} has already gone further")


def _check_available(params: Params) -> None:
    """Says now, not in the middle of a run, what the parameters name and this machine lacks."""
    path = params.policy.path
    if path is None and not params.environment.is_builtin:
        raise UserError(
            f"environment.name={params.environment.name!r} needs a real model: set policy.path to a folder with a "
            "Hugging Face checkpoint (the tiny policy knows only the built-in tasks)"
        )
    if path is not None and not (Path(path) / "config.json").is_file():
        raise UserError(f"policy.path={path!r}: no config.json there; give a folder with a Hugging Face checkpoint")
    if params.predictor.path is not None and not (Path(params.predictor.path) / "config.json").is_file():
        raise UserError(
            f"predictor.path={params.predictor.path!r}: no config.json there; give a Hugging Face checkpoint"
        )
    corpus = params.environment.corpus
    if params.environment.name == "search" and (corpus is None) == (params.environment.retriever is None):
        raise UserError("search needs environment.corpus (a file) or environment.retriever (a server's URL), not both")
    if corpus is not None and not Path(corpus).is_file():
        raise UserError(f"environment.corpus={corpus!r}: no such file")
    for key, name, built_in in (
        ("engine.name", params.engine.name, "transformers"),
        ("update.trainer", params.update.trainer, "torch"),
    ):
        if name != built_in:
            if find_spec(name) is None:
                raise MissingExtraError(f"{key}: {name}", name)
            raise UserError(f"{key}={name!r} is not available in this version; use {built_in!r}")


@contextmanager
def lock(run: Run) -> Iterator[None]:
    """Holds the run for this process; the system frees it when the process ends, however it ends.

    Raises:
        UserError: if another process holds it.
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
        yield


def find_run(name: str, runs_dir: Path) -> Run:
    """An existing run by id or path.

    Raises:
        UserError: if there is none; the message lists some that there are.
    """
    for path in (Path(name), runs_dir / name):
        if (path / "manifest.json").is_file():
            return Run(path.resolve())
    known = sorted(p.parent.name for p in runs_dir.glob("*/manifest.json") if not p.parent.is_symlink())
    raise UserError(
        f"no run {name!r} in {runs_dir}/; there is {', '.join(known[-5:]) or 'none yet: start one with trace train'}"
    )


def _differences(old: Params, new: Params) -> dict[str, tuple[Any, Any]]:
    def flat(value: Any, prefix: str = "") -> dict[str, Any]:
        if not isinstance(value, dict):
            return {prefix: value}
        return {
            k: v
            for key, inner in value.items()
            for k, v in flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
        }

    a, b = flat(old.model_dump()), flat(new.model_dump())
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def _point_latest_to(path: Path) -> None:
    link = path.parent / "latest"
    if link.exists() and not link.is_symlink():
        logger.warning("%s is no link that a run has made; it is left as it is and does not name this run", link)
        return
    temporary = path.parent / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(link)
