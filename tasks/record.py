"""Record: the iteration's metrics and pages."""

from __future__ import annotations

from pathlib import Path

from components.storage import write_json, write_text
from components.tracking.names import iteration_metrics
from components.tracking.report import iteration_report
from components.tracking.viewer import forest_page
from tasks.artifacts import show_iteration
from tasks.inputs import shared_forest
from tasks.stage import Context, read_stages, stage


@stage("record", output="metrics.json", also=("report.html",))
def record(context: Context, forest: Path, evaluation: Path | None, seconds: float) -> dict[str, float]:
    """Writes the iteration's line of metrics.jsonl and its report, and shows the line as an artifact in Prefect.

    `seconds` is the wall time of the iteration so far.
    """
    finished, units = shared_forest(forest), context.params.allocation.budget.units
    line = iteration_metrics(
        context.iteration, finished, context.params.update.advantage, read_stages(context.folder), units, seconds
    )
    write_json(context.output, line)
    title = f"Run {context.run.run_id}, iteration {context.iteration}"
    write_text(context.folder / "report.html", iteration_report(title, line, finished))
    write_text(context.folder / "trees.html", forest_page(title, finished))
    show_iteration(context.run, title, line)
    return {}
