"""Record: the iteration's metrics, on disk and as a Prefect artifact."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from prefect import runtime
from prefect.artifacts import create_table_artifact

from components.storage import write_json, write_text
from components.tracking.names import iteration_metrics
from components.tracking.report import iteration_report
from components.tracking.viewer import forest_page
from tasks.inputs import shared_forest
from tasks.stage import Context, read_stages, stage

logger = logging.getLogger("trace")


@stage("record", output="metrics.json", also=("report.html",))
def record(context: Context, forest: Path, evaluation: Path | None, seconds: float) -> dict[str, float]:
    """Writes the iteration's line of metrics.jsonl and its report, and shows the line as an artifact in Prefect.

    `seconds` is the wall time of the iteration so far.
    """
    finished, units = shared_forest(forest), context.params.allocation.shape.units
    line = iteration_metrics(
        context.iteration, finished, context.params.update.advantage, read_stages(context.folder), units, seconds
    )
    write_json(context.output, line)
    title = f"Run {context.run.run_id}, iteration {context.iteration}"
    write_text(context.folder / "report.html", iteration_report(title, line, finished))
    if context.iteration:  # the page of the newest forest; `trace view` makes the others anew
        (context.run.iteration(context.iteration - 1) / "trees.html").unlink(missing_ok=True)
    write_text(context.folder / "trees.html", forest_page(title, finished))
    _artifact(context, title, line)
    return {}


def _artifact(context: Context, title: str, line: dict[str, Any]) -> None:
    """A table in Prefect's UI: effective ratio, budget by stage, calibration."""
    if runtime.flow_run.id is None:  # called outside Prefect
        return
    rows = [
        {"group": group, "metric": name, "value": "" if value is None else round(value, 4)}
        for key, value in line.items()
        for group, _, name in [key.partition("/")]
        if name
    ]
    key = "".join(c if c.isalnum() else "-" for c in f"trace-{context.run.run_id}".lower()).strip("-")
    description = f"{title}: where the budget went, and how good the predictions were."
    try:
        create_table_artifact(rows, key=key, description=f"{description} [The trees]({_trees(context)}), turn by turn.")
    except Exception as error:  # whatever Prefect raises: what is shown there is on disk
        logger.warning("%s: Prefect does not have its table (%s: %.200s)", title, type(error).__name__, error)


def _trees(context: Context) -> str:
    """Where the page of trees can be opened: MLflow's, if it is a server, else the file."""
    server, manifest = os.environ.get("MLFLOW_TRACKING_URI", ""), context.run.manifest
    if server.startswith("http") and manifest.get("mlflow_run_id"):
        where = f"{manifest.get('mlflow_experiment_id')}/runs/{manifest['mlflow_run_id']}/artifacts/trees.html"
        return f"{server}/#/experiments/{where}"
    return (context.folder / "trees.html").as_uri()
