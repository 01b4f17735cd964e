"""Record: an iteration's metrics and trees, and the run's report at its end."""

from __future__ import annotations

import logging
from pathlib import Path

from components.storage import write_json
from components.tracking.names import iteration_metrics
from tasks.artifacts import show_iteration, show_report
from tasks.inputs import shared_forest
from tasks.report import write_report, write_trees
from tasks.run import Run
from tasks.stage import Context, read_stages, stage

logger = logging.getLogger("trace")


@stage("record", output="metrics.json")
def record(context: Context, forest: Path, evaluation: Path | None, seconds: float) -> dict[str, float]:
    """Writes the iteration's line of metrics.jsonl and the page of its trees; the line is an artifact in Prefect too.

    `seconds` is the wall time of the iteration so far.
    """
    finished = shared_forest(forest)
    line = iteration_metrics(context.iteration, finished, context.params, read_stages(context.folder), seconds)
    write_json(context.output, line)
    write_trees(context.run, context.iteration, finished)
    show_iteration(context.run, context.iteration, line)
    return {}


def publish_report(run: Run) -> None:
    """Writes the report at a run's end and links it in Prefect, best-effort: what it shows is on disk."""
    try:
        show_report(run, write_report(run))
    except Exception as error:  # whatever a damaged forest raises: the run is over and whole
        logger.warning("run %s: no report (%s: %.200s)", run.run_id, type(error).__name__, error)
