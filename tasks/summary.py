"""A run as a whole: which iterations are finished, metrics.jsonl, and the summary at the end."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from components.errors import UserError
from components.storage import read_json, write_json, write_text
from tasks.run import Run
from tasks.stage import listeners, read_stages
from tasks.store import is_whole

logger = logging.getLogger("trace")


def finished_iterations(run: Run) -> int:
    """Number of iterations that need not run again, from the start.

    An iteration is finished when its record is written. The newest finished one must also have its policy and
    predictor whole; where they are damaged, the run goes back to the newest one that has them, and says so.
    """
    done = 0
    while "record" in read_stages(run.iteration(done)):
        done += 1
    recorded = done
    while done and not _is_whole(run.iteration(done - 1)):
        done -= 1
    if done < recorded:
        if done == 0 and recorded > 1:
            raise UserError(
                f"run {run.run_id}: no policy checkpoint is whole any more; "
                f"restore {run.path}/iterations, or start a new run"
            )
        logger.warning(
            "the checkpoint of iteration %d is missing or damaged; going on from iteration %d", recorded - 1, done
        )
    return done


def mend_metrics(run: Run, done: int) -> None:
    """Brings metrics.jsonl in line with the finished iterations, which hold every line of it.

    A kill may have torn its last line or kept it from being written; other differences are told.
    """
    written = run.metrics_path.read_bytes() if run.metrics_path.exists() else b""
    wanted = "".join(_line(run, number) for number in range(done)).encode()
    if written == wanted:
        return
    if not wanted.startswith(written) and not written.startswith(wanted):
        logger.warning("%s was damaged; it is made anew from the iterations", run.metrics_path)
    write_text(run.metrics_path, wanted.decode())


def append_metrics(run: Run, number: int) -> None:
    """Appends the iteration's line to metrics.jsonl, and tells the log and the listeners."""
    with run.metrics_path.open("a", encoding="utf-8") as stream:
        stream.write(_line(run, number))
        stream.flush()
        os.fsync(stream.fileno())
    line = read_json(run.iteration(number) / "metrics.json")
    logger.info("%s", one_line(line))
    for listener in listeners:
        listener.iteration(line)


def write_summary(run: Run) -> dict[str, Any]:
    """Writes summary.json: the first and the last accuracy, means of ratios, and totals of the budget."""
    lines = run.metrics()
    last = read_json(run.iteration(run.params.run.iterations) / "evaluation.json")

    def total(key: str) -> float:
        return float(sum(line.get(key) or 0.0 for line in lines))

    def mean(key: str) -> float | None:
        values = [line[key] for line in lines if line.get(key) is not None]
        return float(sum(values) / len(values)) if values else None

    summary = {
        "run_id": run.run_id,
        "arm": run.params.allocation.arm,
        "seed": run.params.run.seed,
        "iterations": len(lines),
        "accuracy/first": lines[0]["eval/accuracy"],
        "accuracy/last": last["accuracy"],
        "effective_ratio/prompts/first": lines[0]["effective_ratio/prompts"],
        "effective_ratio/prompts/last": lines[-1]["effective_ratio/prompts"],
        "effective_ratio/prompts": mean("effective_ratio/prompts"),
        "effective_ratio/leaves": mean("effective_ratio/leaves"),
        "tree/flip_rate": mean("tree/flip_rate"),
        "budget/units": total("budget/units"),
        "budget/leaves": total("budget/leaves"),
        "budget/bare_rollouts": total("budget/bare_rollouts"),
        "budget/continuations": total("budget/continuations"),
        "tokens/generated": total("tokens/generated"),
        "time": {key.partition("/")[2]: total(key) for key in lines[-1] if key.startswith("time/")},
    }
    write_json(run.path / "summary.json", summary)
    return summary


def one_line(line: dict[str, Any]) -> str:
    """An iteration in one line, for a terminal or a log."""

    def share(key: str) -> str:
        return "   –" if line[key] is None else f"{line[key]:4.2f}"

    return (
        f"{line['iteration']:4d}  accuracy {share('eval/accuracy')}  effective ratio {share('effective_ratio/prompts')}"
        f"  {line['budget/units']:g} units  {line['tokens/generated']:,.0f} tokens  {line['time/iteration']:.1f} s"
    )


def _line(run: Run, number: int) -> str:
    return json.dumps(read_json(run.iteration(number) / "metrics.json")) + "\n"


def _is_whole(folder: Path) -> bool:
    """Whether the policy and the predictor of an iteration are those that its manifest names."""
    stages = read_stages(folder)
    return all(
        is_whole(folder / name, stages[stage]["outputs"][name])
        for stage, name in (
            ("update_policy", "policy"),
            ("update_policy", "forest.parquet"),
            ("refit_predictor", "predictor"),
        )
    )
