"""Compare: what finished runs say of their arms, as tables and a figure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components.errors import UserError
from components.storage import atomic_path, read_json, write_json, write_text
from components.tracking.compare import RATIOS, Curve, compare, figure, flat, markdown
from tasks.run import MAY_CHANGE, Run

NOT_THE_SETTING = (*MAY_CHANGE, "allocation.arm", "run.seed")


def read_curves(runs: Sequence[Run]) -> list[Curve]:
    """The curves of runs, with settings named by the parameters in which these differ.

    Raises:
        UserError: if a run has not finished an iteration, or two have the same arm, seed and setting.
    """
    flat_params = [_flat(run.params.model_dump()) for run in runs]
    keys = [k for k in flat_params[0] if k not in NOT_THE_SETTING and len({str(p.get(k)) for p in flat_params}) > 1]
    curves: list[Curve] = []
    known: dict[tuple[str, str, int], str] = {}
    for run, params in zip(runs, flat_params, strict=True):
        different = [f"{k}={params.get(k)}" for k in keys if k != "environment.name"]
        curve = _curve(run, ", ".join([run.params.environment.name, *different]))
        key = (curve.setting, curve.arm, curve.seed)
        if key in known:
            raise UserError(
                f"runs {known[key]} and {run.run_id} both are arm {curve.arm}, seed {curve.seed} of the same setting; "
                "name one of them"
            )
        known[key] = run.run_id
        curves.append(curve)
    return curves


def _curve(run: Run, setting: str) -> Curve:
    lines = run.metrics()
    if not lines:
        raise UserError(f"run {run.run_id} has no finished iteration yet")
    accuracy = {line["iteration"]: line["eval/accuracy"] for line in lines}
    after = run.iteration(len(lines)) / "evaluation.json"
    if after.exists():
        accuracy[len(lines)] = read_json(after)["accuracy"]
    spent = {key: np.cumsum([0.0, *(line[key] for line in lines)]) for key in ("budget/units", "tokens/generated")}
    at = [k for k in sorted(accuracy) if accuracy[k] is not None]

    def mean(key: str) -> float:
        values = [line[key] for line in lines if line.get(key) is not None]
        return float(np.mean(values)) if values else math.nan

    return Curve(
        run.run_id,
        setting,
        run.params.allocation.arm,
        run.params.run.seed,
        spent["budget/units"][at],
        spent["tokens/generated"][at],
        np.array([accuracy[k] for k in at], dtype=np.float64),
        {name: mean(key) for name, key in RATIOS.items()},
        float(sum(line["time/iteration"] for line in lines)),
    )


def write_comparison(
    curves: Sequence[Curve], folder: Path, baseline: str, accuracy: float | None = None
) -> list[dict[str, Any]]:
    """Writes comparison.{md,csv,json} and accuracy.svg; returns the rows of `components.tracking.compare.compare`."""
    rows = compare(curves, baseline, accuracy)
    plain = [flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(plain[0]))
    writer.writeheader()
    writer.writerows(plain)
    write_text(folder / "comparison.md", markdown(rows))
    write_text(folder / "comparison.csv", text.getvalue())
    write_json(folder / "comparison.json", plain)
    with atomic_path(folder / "accuracy.svg") as temporary:
        figure(curves).savefig(temporary, format="svg", metadata={"Date": None})
    return rows


def log_comparison(name: str, runs: Sequence[Run], rows: list[dict[str, Any]], folder: Path) -> str:
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
        for row in map(flat, rows):
            for key in ("accuracy_at_units", "accuracy_at_tokens", "effective_ratio"):
                if row[key] is not None:
                    client.log_metric(parent, f"{row['arm']}/{key}", row[key])
        for path in sorted(folder.glob("*")):
            client.log_artifact(parent, str(path))
        for run in runs:
            if child := run.manifest.get("mlflow_run_id"):
                client.set_tag(child, MLFLOW_PARENT_RUN_ID, parent)
        client.set_terminated(parent)
    except MlflowException as error:
        raise UserError(f"MLflow does not take the comparison: {str(error).splitlines()[0]}") from error
    return parent


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, dict) and all(isinstance(k, str) for k in value)
        found |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
