"""Record: the iteration's metrics, on disk and as a Prefect artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import runtime
from prefect.artifacts import create_table_artifact

from components.storage import read_json, write_json
from components.tracking.names import iteration_metrics
from tasks.inputs import read_forest
from tasks.stage import Context, read_stages, stage


@stage("record", output="metrics.json")
def record(context: Context, forest: Path, evaluation: Path | None, seconds: float) -> dict[str, float]:
    """Writes the iteration's line of metrics.jsonl, and shows it as an artifact in Prefect.

    `seconds` is the wall time of the iteration so far.
    """
    stages = read_stages(context.folder)
    line = iteration_metrics(
        context.iteration, read_forest(forest), stages, context.params.allocation.shape.units, seconds
    )
    write_json(context.output, line)
    _artifact(context, read_json(context.output))
    return {}


def _artifact(context: Context, line: dict[str, Any]) -> None:
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
    where = f"Run {context.run.run_id}, iteration {context.iteration}"
    description = f"{where}: where the budget went, and how good the predictions were."
    create_table_artifact(rows, key=key, description=description)
