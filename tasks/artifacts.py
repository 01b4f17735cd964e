"""What Prefect shows of a run: a table an iteration, one of the run, its report; best-effort, all is on disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect import get_client, runtime
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.client.schemas.actions import ArtifactUpdate

from components.secrets import without_credentials
from tasks.run import Run

logger = logging.getLogger("trace")

Rows = list[dict[str, Any]]
COLUMNS = {
    "iteration": "iteration",
    "accuracy": "eval/accuracy",
    "effective ratio": "effective_ratio/prompts",
    "units": "budget/units",
    "tokens": "tokens/generated",
    "seconds": "time/iteration",
}
ROWS = 100  # iterations in the table of a run
MODEL_TRAINING = "?workflowType=machine_learning"  # else MLflow opens its pages for applications of language models


def show_run(run: Run, iterations: int, shown: UUID | None) -> UUID | None:
    """A table of the newest of the finished iterations; returns its id, which brings it up to date."""
    lines = run.metrics(max(0, iterations - ROWS))
    rows = [{title: _plain(line.get(key)) for title, key in COLUMNS.items()} for line in lines]
    arm, about_run = run.params.allocation.arm, run.params.run
    what = f"Run {run.run_id}: arm {arm}, seed {about_run.seed}, {about_run.iterations} iterations."
    about = f"{what} {_links(run)}"

    def show(key: str) -> UUID:
        if shown is None:
            return cast(UUID, create_table_artifact(rows, key=key, description=about))
        with get_client(sync_client=True) as client:
            client.update_artifact(shown, ArtifactUpdate(data=json.dumps(rows), description=about))
        return shown

    return _show(run, "iterations", show) or shown


def show_iteration(run: Run, number: int, line: dict[str, Any]) -> None:
    """A table of an iteration: effective ratio, budget by stage, calibration."""
    rows = [
        {"group": group, "metric": name, "value": _plain(value)}
        for key, value in line.items()
        for group, _, name in [key.partition("/")]
        if name
    ]
    title = f"Run {run.run_id}, iteration {number}"
    about = f"{title}: where the budget went, and how good the predictions were. {_links(run)}"
    _show(run, "", lambda key: create_table_artifact(rows, key=key, description=about))


def show_report(run: Run, page: Path) -> None:
    """A link to the run's report."""
    where = f"{_mlflow(run)}/artifacts/{page.name}{MODEL_TRAINING}" if _mlflow(run) else page.as_uri()
    about = f"Run {run.run_id}"
    _show(run, "report", lambda key: create_link_artifact(where, "The run on one page", key=key, description=about))


def _show(run: Run, what: str, show: Callable[[str], Any]) -> Any:
    """Calls `show` with a key of small letters, digits and dashes; None outside Prefect, or if it fails."""
    if runtime.flow_run.id is None:
        return None
    key = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{run.run_id}-{what}".lower()).strip("-") or "run"
    try:
        return show(key)
    except Exception as error:  # whatever Prefect raises
        logger.warning("%s: Prefect does not have %s (%s: %.200s)", run.run_id, key, type(error).__name__, error)
        return None


def _mlflow(run: Run) -> str | None:
    """The run's page in MLflow, if that is a server."""
    server, manifest = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", "")), run.manifest
    if not (server.startswith("http") and manifest.get("mlflow_run_id")):
        return None
    return f"{server}/#/experiments/{manifest.get('mlflow_experiment_id')}/runs/{manifest['mlflow_run_id']}"


def _links(run: Run) -> str:
    """Where the trees and the charts can be seen: in MLflow, and by `trace view`."""
    command = f"`trace view {run.run_id} --iteration N` opens those of iteration N."
    if (page := _mlflow(run)) is None:
        return f"The trees, turn by turn, are on disk: {command}"
    charts, trees = (f"{page}/{tab}{MODEL_TRAINING}" for tab in ("model-metrics", "artifacts/trees.html"))
    return f"In MLflow: [charts]({charts}) and [the newest trees, turn by turn]({trees}); {command}"


def _plain(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)
