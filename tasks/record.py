"""Record: the iteration's metrics, on disk and as a Prefect artifact; and the whole run's, iteration by iteration."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect import get_client, runtime
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.actions import ArtifactUpdate

from components.secrets import without_credentials
from components.storage import write_json, write_text
from components.tracking.names import iteration_metrics
from components.tracking.report import iteration_report
from components.tracking.viewer import forest_page
from tasks.inputs import read_forest
from tasks.run import Run
from tasks.stage import Context, read_stages, stage

logger = logging.getLogger("trace")

COLUMNS = {
    "iteration": "iteration",
    "accuracy": "eval/accuracy",
    "effective ratio": "effective_ratio/prompts",
    "units": "budget/units",
    "tokens": "tokens/generated",
    "seconds": "time/iteration",
}
ROWS = 100  # iterations in the table of a run


@stage("record", output="metrics.json", also=("report.html",))
def record(context: Context, forest: Path, evaluation: Path | None, seconds: float) -> dict[str, float]:
    """Writes the iteration's line of metrics.jsonl and its report, and shows the line as an artifact in Prefect.

    `seconds` is the wall time of the iteration so far.
    """
    finished, units = read_forest(forest), context.params.allocation.shape.units
    line = iteration_metrics(
        context.iteration, finished, context.params.update.advantage, read_stages(context.folder), units, seconds
    )
    write_json(context.output, line)
    title = f"Run {context.run.run_id}, iteration {context.iteration}"
    write_text(context.folder / "report.html", iteration_report(title, line, finished))
    if context.iteration:  # the page of the newest forest; `trace view` makes the others anew
        (context.run.iteration(context.iteration - 1) / "trees.html").unlink(missing_ok=True)
    write_text(context.folder / "trees.html", forest_page(title, finished))
    _show_iteration(context, title, line)
    return {}


def show_run(run: Run, shown: UUID | None) -> UUID | None:
    """A table of the newest iterations, as an artifact of the flow run; returns its id, which brings it up to date."""
    rows = [{title: _plain(line.get(key)) for title, key in COLUMNS.items()} for line in run.metrics()[-ROWS:]]
    chosen = run.params
    about = (
        f"Run {run.run_id}: arm {chosen.allocation.arm}, seed {chosen.run.seed}, {chosen.run.iterations} iterations."
    )
    return _show(run, f"{_key(run)}-iterations", rows, f"{about} {_links(run)}", shown)


def _show_iteration(context: Context, title: str, line: dict[str, Any]) -> None:
    """A table in Prefect's UI: effective ratio, budget by stage, calibration."""
    rows = [
        {"group": group, "metric": name, "value": _plain(value)}
        for key, value in line.items()
        for group, _, name in [key.partition("/")]
        if name
    ]
    description = f"{title}: where the budget went, and how good the predictions were. {_links(context.run)}"
    _show(context.run, _key(context.run), rows, description)


def _show(run: Run, key: str, rows: list[dict[str, Any]], text: str, shown: UUID | None = None) -> UUID | None:
    if runtime.flow_run.id is None:  # called outside Prefect
        return None
    try:
        if shown is None:
            return cast(UUID, create_table_artifact(rows, key=key, description=text))
        with get_client(sync_client=True) as client:
            client.update_artifact(shown, ArtifactUpdate(data=json.dumps(rows), description=text))
    except Exception as error:  # whatever Prefect raises: what is shown there is on disk
        logger.warning(
            "%s: Prefect does not have its table %s (%s: %.200s)", run.run_id, key, type(error).__name__, error
        )
    return shown


def _key(run: Run) -> str:
    """Prefect's keys are of lower-case letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in run.run_id.lower()).strip("-") or "run"


def _plain(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)


def _links(run: Run) -> str:
    """Where the trees and the charts can be seen: in MLflow, if it is a server, and by `trace view`."""
    command = f"`trace view {run.run_id} --iteration N` opens those of iteration N."
    server, manifest = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", "")), run.manifest
    if not (server.startswith("http") and manifest.get("mlflow_run_id")):
        return f"The trees, turn by turn, are on disk: {command}"
    page = f"{server}/#/experiments/{manifest.get('mlflow_experiment_id')}/runs/{manifest['mlflow_run_id']}"
    charts, trees = (f"{page}/{tab}?workflowType=machine_learning" for tab in ("model-metrics", "artifacts/trees.html"))
    return f"In MLflow: [charts]({charts}) and [the newest trees, turn by turn]({trees}); {command}"
