"""Runs without Prefect: the stages in the flow's order, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from components.allocation.arms import ARMS
from components.params.load import merge
from components.params.root import Params, compose
from components.storage import content_hash
from components.tree.forest import Forest
from tasks.evaluate import evaluate
from tasks.expand import expand_prefixes
from tasks.inputs import read_forest
from tasks.prepare import prepare_data, warm_up_policy
from tasks.record import record
from tasks.refit import refit_predictor
from tasks.run import Run, open_run
from tasks.sample import allocate_roots, generate, refill_roots
from tasks.score import score_prompts
from tasks.summary import append_metrics, finished_iterations, mend_metrics
from tasks.update import update_policy
from tasks.verify import verify_counterfactual, verify_factual


def stages(run: Run, number: int, policy: Path, predictor: Path | None) -> Iterator[Path]:
    """Runs one iteration stage by stage; yields each stage's output."""
    path = run.path
    yield (evaluation := evaluate.fn(path, number, policy=policy))
    yield (scored := score_prompts.fn(path, number, policy=policy, predictor=predictor))
    yield (roots := allocate_roots.fn(path, number, scored=scored))
    yield (generated := generate.fn(path, number, policy=policy, roots=roots))
    yield (verified := verify_factual.fn(path, number, forest=generated))
    arm = ARMS[run.params.allocation.arm]
    if arm.refills:
        yield (verified := refill_roots.fn(path, number, policy=policy, roots=roots, factual=verified))
    if arm.branches:
        yield (expanded := expand_prefixes.fn(path, number, policy=policy, predictor=predictor, factual=verified))
        yield (verified := verify_counterfactual.fn(path, number, forest=expanded))
    earlier = [run.iteration(k) / "forest.parquet" for k in range(number)]
    yield refit_predictor.fn(path, number, policy=policy, predictor=predictor, verified=verified, earlier=earlier)
    yield (after := update_policy.fn(path, number, policy=policy, verified=verified))
    yield record.fn(path, number, forest=after.parent / "forest.parquet", evaluation=evaluation, seconds=1.0)
    append_metrics(run, number)


def train(run: Run, stop_after: int | None = None) -> None:
    """Trains or continues a run; stops after so many stages, as a kill would."""
    prepare_data.fn(run.path)
    policy, predictor, done = warm_up_policy.fn(run.path), None, finished_iterations(run)
    mend_metrics(run, done)
    count = 0
    for number in range(done, run.params.run.iterations):
        if number:
            policy, predictor = (run.iteration(number - 1) / name for name in ("policy", "predictor"))
        for _ in stages(run, number, policy, predictor):
            count += 1
            if count == stop_after:
                return


def new_run(params: Params, data_dir: Path, runs_dir: Path, run_id: str = "r", **sections) -> Run:
    folders = {"run": {"data_dir": str(data_dir), "runs_dir": str(runs_dir)}}
    return open_run(compose(merge([params.model_dump(), folders, sections])), run_id)


def forests(run: Run) -> list[Forest]:
    return [read_forest(run.iteration(k) / "forest.parquet") for k in range(run.params.run.iterations)]


def fingerprints(run: Run) -> dict[str, str]:
    """Content hashes of everything that an iteration leaves behind; times are not content."""
    timed = ("manifest.json", "metrics.json", "trees.html")
    files = sorted(path for path in run.path.glob("iterations/*/*") if path.name not in timed)
    return {str(p.relative_to(run.path)): content_hash(p) for p in files}
