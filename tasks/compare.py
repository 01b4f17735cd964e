"""Compare: what finished runs say of their arms, as tables and figures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components.errors import UserError
from components.params.root import flatten, may_change
from components.storage import atomic_path, read_parquet, write_json, write_text
from components.tracking.compare import Curve, Row, by_title, flat, markdown, summarise
from components.tracking.figures import FIGURES
from components.tree.schema import NODE_SCHEMA
from tasks.run import Run

STARTS = ("parent_id", "anchor_id", "turn")  # a rollout's first node is a child of the node that paid for it
NOT_THE_SETTING = {"allocation.arm", "run.seed"}
HEADLINE = ("accuracy_at_units", "accuracy_at_units_gain", "effective_ratio")


def read_curves(runs: Sequence[Run], label: str = "") -> list[Curve]:
    """The curves of runs of one kind.

    Args:
        runs: Finished or unfinished runs.
        label: What they have in common; runs of a task whose parameters differ are told apart by those as well.

    Raises:
        UserError: if a run has not finished an iteration, or two have the same arm, seed and setting.
    """
    curves: list[Curve] = []
    for task in dict.fromkeys(run.params.environment.name for run in runs):
        mine = [run for run in runs if run.params.environment.name == task]
        params = [flatten(run.params.model_dump()) for run in mine]
        free = NOT_THE_SETTING.union(*(may_change(run.params) for run in mine))
        known = dict.fromkeys(key for values in params for key in values if key not in free)
        # A key that only some arms have is part of the arm, and tells only its own runs apart.
        keys = [key for key in known if len({str(values[key]) for values in params if key in values}) > 1]
        for run, values in zip(mine, params, strict=True):
            different = [f"{key}={values[key]}" for key in keys if key in values]
            curves.append(_curve(run, ", ".join(filter(None, [label, *different]))))
    return curves


def check_cells(curves: Sequence[Curve]) -> None:
    """Raises a UserError if two runs have the same task, setting, arm and seed."""
    known: dict[tuple[str, str, int], str] = {}
    for curve in curves:
        key = (curve.title, curve.arm, curve.seed)
        if key in known:
            raise UserError(
                f"runs {known[key]} and {curve.run_id} both are arm {curve.arm}, seed {curve.seed} of the same "
                "setting; name one of them"
            )
        known[key] = curve.run_id


def _curve(run: Run, setting: str) -> Curve:
    lines = run.metrics()
    if not lines:
        raise UserError(f"run {run.run_id} has no finished iteration yet")
    accuracy = {line["iteration"]: line["eval/accuracy"] for line in lines}
    accuracy[len(lines)] = run.accuracy_after(len(lines))
    spent = {key: np.cumsum([0.0, *(line[key] for line in lines)]) for key in ("budget/units", "tokens/generated")}
    at = [k for k in sorted(accuracy) if accuracy[k] is not None]
    names = dict.fromkeys(name for line in lines for name in line)
    history = {name: np.array([line.get(name) for line in lines], dtype=np.float64) for name in names}
    if "budget/active_prompts" in history:
        history["budget/active_share"] = history["budget/active_prompts"] / run.params.allocation.pool
    return Curve(
        run.run_id,
        run.params.environment.name,
        setting,
        run.params.allocation.arm,
        run.params.run.seed,
        spent["budget/units"][at],
        spent["tokens/generated"][at],
        np.array([accuracy[k] for k in at], dtype=np.float64),
        history,
        _depths(run, len(lines)),
    )


def _depths(run: Run, iterations: int) -> np.ndarray:
    """Rollouts by the depth of the node that they were sampled from, over the forests that are kept; float64 (D,)."""
    counts: np.ndarray = np.zeros(1)
    for number in range(iterations):
        path = run.iteration(number) / "forest.parquet"
        if path.exists():
            table = read_parquet(path, NODE_SCHEMA)
            parent_N, anchor_N, turn_N = (table[name].to_numpy() for name in STARTS)
            found = np.bincount(turn_N[parent_N[(parent_N >= 0) & (parent_N == anchor_N)]], minlength=len(counts))
            counts = found + np.pad(counts, (0, len(found) - len(counts)))
    return counts


def write_comparison(curves: Sequence[Curve], folder: Path, baseline: str, accuracy: float | None = None) -> list[Row]:
    """Writes the tables, their numbers and the figures; returns the rows of `components.tracking.compare.summarise`.

    The files are comparison.md, comparison.csv, summary.json (a list of plain rows), metrics.json (`HEADLINE` by
    task, setting and arm, for `dvc metrics show`, which makes each number a column), curves.csv (every evaluation of
    every run), and a figure each.
    """
    rows = summarise(curves, baseline, accuracy)
    plain = [flat(row) for row in rows]
    write_text(folder / "comparison.md", markdown(rows))
    write_text(folder / "comparison.csv", _csv(plain))
    write_json(folder / "summary.json", plain)
    nested: dict[str, Any] = {}
    for row in plain:
        numbers = {name: row[name] for name in HEADLINE if row[name] is not None}
        nested.setdefault(row["task"], {}).setdefault(row["setting"] or "all", {})[row["arm"]] = numbers
    write_json(folder / "metrics.json", nested)
    write_text(folder / "curves.csv", _csv([point for curve in curves for point in _points(curve)]))
    for name, figure in FIGURES.items():
        with atomic_path(folder / f"{name}.svg") as temporary:
            figure(curves).savefig(temporary, format="svg", metadata={"Date": None})
    return rows


def _points(curve: Curve) -> list[Row]:
    what = {"task": curve.task, "setting": curve.setting, "arm": curve.arm, "seed": curve.seed}
    at = zip(curve.units, curve.tokens, curve.accuracy, strict=True)
    return [what | {"units": float(u), "tokens": float(t), "accuracy": float(a)} for u, t, a in at]


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def log_comparison(name: str, runs: Sequence[Run], rows: list[Row], folder: Path) -> str:
    """Makes an MLflow run of the comparison, and the parent of those of the runs; returns its id.

    Raises:
        UserError: if MLflow cannot be reached.
    """
    import mlflow
    from mlflow.exceptions import MlflowException
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    client = mlflow.MlflowClient()
    try:
        experiment = client.get_experiment_by_name(runs[0].params.tracking.experiment)
        where = experiment.experiment_id if experiment else client.create_experiment(runs[0].params.tracking.experiment)
        parent = str(client.create_run(where, run_name=name).info.run_id)
        for title, mine in by_title(rows).items():
            for row in map(flat, mine):
                for key in ("accuracy_at_units", "accuracy_at_tokens", "effective_ratio"):
                    if row[key] is not None:
                        client.log_metric(parent, f"{_allowed(title)}/{row['arm']}/{key}", row[key])
        for path in sorted(folder.glob("*")):
            client.log_artifact(parent, str(path))
        for run in runs:
            if child := run.manifest.get("mlflow_run_id"):
                client.set_tag(child, MLFLOW_PARENT_RUN_ID, parent)
        client.set_terminated(parent)
    except MlflowException as error:
        raise UserError(f"MLflow does not take the comparison: {str(error).splitlines()[0]}") from error
    return parent


def _allowed(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w./ -]", " ", name)
