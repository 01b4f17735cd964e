"""A run as a whole: which iterations are finished, metrics.jsonl, and the summary at the end."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from components.errors import UserError
from components.params.root import Params
from components.storage import append_text, json_text, read_json, write_json, write_text
from components.tracking.advice import nothing_learnt
from tasks.run import Run
from tasks.stage import is_whole, listeners, read_stages

logger = logging.getLogger("trace")


def finished_iterations(run: Run) -> int:
    """The number of iterations, from the start, that need not run again.

    An iteration is finished when its record is written. To go on from there, its policy, its predictor and the forests
    that the next refit needs must be intact as well. Where they are not, the run goes back to the newest iteration that
    has them, and logs a warning.

    Raises:
        UserError: if no iteration has them, so that all would be lost; the message names the file.
    """
    numbers = sorted((int(p.name) for p in (run.path / "iterations").glob("[0-9]*")), reverse=True)
    recorded = next((number + 1 for number in numbers if "record" in read_stages(run.iteration(number))), 0)
    done, damaged = recorded, _damaged(run, recorded)
    while done and _damaged(run, done) is not None:
        done -= 1
    if damaged is not None:
        if done == 0 and recorded > 1:
            raise UserError(
                f"run {run.run_id}: {damaged} is missing or not what the manifest.json beside it says, and there is no "
                "earlier policy to go on from; restore it, or start a new run"
            )
        logger.warning("%s is missing or damaged; going on from iteration %d", damaged, done)
    return done


def _damaged(run: Run, done: int) -> Path | None:
    """A file without which the run cannot go on after `done` iterations."""
    if not done:
        return None
    newest = run.iteration(done - 1)
    needed = [("update_policy", newest / "policy"), ("refit_predictor", newest / "predictor")]
    for number in reversed(range(max(0, done - max(1, run.params.predictor.replay)), done)):
        needed.append(("update_policy", run.iteration(number) / "forest.parquet"))
    for stage, path in needed:
        if not is_whole(path.parent, stage, path.name):
            return path if stage in read_stages(path.parent) else path.parent / "manifest.json"
    return None


def mend_metrics(run: Run, done: int) -> None:
    """Brings metrics.jsonl in line with the finished iterations, whose metrics.json hold every line of it.

    After a kill its last line may be missing or half written; any other difference is logged as a warning. A damaged
    metrics.json of an iteration is written again from metrics.jsonl.

    Raises:
        UserError: if neither of them has an iteration's line as the manifest's hash wants it.
    """
    written = run.metrics_path.read_bytes() if run.metrics_path.exists() else b""
    known = _readable_lines(written)
    wanted = "".join(_dumped(_line_of(run, number, known.get(number))) for number in range(done)).encode()
    if written == wanted:
        return
    if not wanted.startswith(written) and not written.startswith(wanted):
        logger.warning("%s was damaged; it is written again from the iterations", run.metrics_path)
    write_text(run.metrics_path, wanted.decode())


def _line_of(run: Run, number: int, line: Any) -> Any:
    """An iteration's line: that of its metrics.json or, where this is damaged, `line`, the one in metrics.jsonl."""
    path = run.iteration(number) / "metrics.json"
    if is_whole(path.parent, "record", path.name):
        return read_json(path)
    expected = read_stages(path.parent).get("record", {"outputs": {}})["outputs"].get(path.name)
    if line is None or expected not in (None, hashlib.sha256(json_text(line).encode()).hexdigest()):
        raise UserError(f"{path} is missing or damaged, and {run.metrics_path} does not have its line; restore it")
    if path.parent.exists():
        logger.warning("%s is missing or damaged; it is written again from %s", path, run.metrics_path)
        write_json(path, line)
    return line


def append_metrics(run: Run, number: int) -> None:
    """Appends the iteration's line to metrics.jsonl, and passes it to the log and the listeners."""
    line = read_json(run.iteration(number) / "metrics.json")
    append_text(run.metrics_path, _dumped(line))
    logger.info("%s", one_line(line, run.params))
    for listener in listeners:
        listener.iteration(line)


def write_summary(run: Run) -> dict[str, Any]:
    """Writes summary.json: the first, last and best accuracy, means of ratios, and totals of the budget.

    The best is that of the policies that the run made, the one after the last update among them; the manifest notes it.
    """
    lines = run.metrics()
    last = read_json(run.iteration(run.params.run.iterations) / "evaluation.json")
    evaluated = [*(line["eval/accuracy"] for line in lines), last["accuracy"]]
    ranked = [(accuracy, version) for version, accuracy in enumerate(evaluated) if version and accuracy is not None]
    best, version = max(ranked, default=(None, None))
    run.note(best=[version, best])

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
        "accuracy/best": best,
        "effective_ratio/prompts/first": lines[0]["effective_ratio/prompts"],
        "effective_ratio/prompts/last": lines[-1]["effective_ratio/prompts"],
        "effective_ratio/prompts": mean("effective_ratio/prompts"),
        "effective_ratio/leaves": mean("effective_ratio/leaves"),
        "tree/flip_rate": mean("tree/flip_rate"),
        "budget/units": total("budget/units"),
        "budget/leaves": total("budget/leaves"),
        "budget/factual_rollouts": total("budget/factual_rollouts"),
        "budget/continuations": total("budget/continuations"),
        "tokens/generated": total("tokens/generated"),
        "time": {key.partition("/")[2]: total(key) for key in lines[-1] if key.startswith("time/")},
        "nothing_learnt": nothing_learnt(lines, run.params),
    }
    write_json(run.path / "summary.json", summary)
    return summary


def one_line(line: dict[str, Any], params: Params) -> str:
    """An iteration in one line, for a terminal or a log; says why where the policy learnt nothing."""

    def share(key: str) -> str:
        return "   –" if line[key] is None else f"{line[key]:4.2f}"

    return (
        f"{line['iteration']:4d}  accuracy {share('eval/accuracy')}  effective ratio {share('effective_ratio/prompts')}"
        f"  {line['budget/units']:g} units  {line['tokens/generated']:,.0f} tokens  {line['time/iteration']:.1f} s"
        + (f"  {why}" if (why := nothing_learnt([line], params)) else "")
    )


def _dumped(line: Any) -> str:
    return json.dumps(line) + "\n"


def _readable_lines(written: bytes) -> dict[int, Any]:
    """The intact lines of metrics.jsonl, by iteration."""
    lines: dict[int, Any] = {}
    for text in written.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            line = json.loads(text)
            lines.setdefault(line["iteration"], line)
    return lines
