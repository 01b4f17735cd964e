"""Report: a run as a whole, as a page; written at its end, and at any time by `trace report`."""

from __future__ import annotations

import logging
from pathlib import Path

from components.errors import UserError
from components.storage import write_text
from components.tracking.run_report import Digest, run_report
from tasks.artifacts import show_report
from tasks.inputs import read_forest
from tasks.run import Run
from tasks.store import is_there

logger = logging.getLogger("trace")


def write_report(run: Run, output: Path | None = None) -> Path:
    """Writes the page of the run's finished iterations, by default into the run; reads one forest after the other.

    Raises:
        UserError: if no iteration has finished, or a file of the run is damaged.
    """
    lines = run.metrics()
    if not lines:
        raise UserError(f"run {run.run_id} has no finished iteration yet")
    forests = {line["iteration"]: run.iteration(line["iteration"]) / "forest.parquet" for line in lines}
    digests = [Digest.of(number, read_forest(path)) for number, path in forests.items() if is_there(path)]
    path = output or run.path / "report.html"
    write_text(path, run_report(run.run_id, run.params, lines, run.accuracy_after(len(lines)), digests))
    return path


def publish_report(run: Run) -> None:
    """Writes the page at a run's end and links it in Prefect, best-effort: what it shows is on disk."""
    try:
        show_report(run, write_report(run))
    except Exception as error:  # whatever a damaged forest raises: the run is over and whole
        logger.warning("run %s: no report (%s: %.200s)", run.run_id, type(error).__name__, error)
