"""The flow `trace`: a run, iteration by iteration, in the order of the method."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, runtime
from prefect.settings import temporary_settings

from components.allocation.arms import ARMS
from components.errors import UserError
from components.params.load import load_params
from components.params.root import Params
from flows.shards import side_by_side
from tasks.artifacts import show_run
from tasks.evaluate import evaluate
from tasks.expand import expand_prefixes
from tasks.mlflow_sync import MlflowSync
from tasks.prepare import data_hash, prepare_data, warm_up_policy
from tasks.record import publish_report, record
from tasks.refit import refit_predictor
from tasks.report import commit
from tasks.retain import retain
from tasks.run import Run, lock, open_run
from tasks.sample import allocate_roots, generate, refill_roots
from tasks.score import score_prompts
from tasks.stage import Shard, clear_stop
from tasks.summary import append_metrics, finished_iterations, mend_metrics, write_summary
from tasks.update import update_policy
from tasks.verify import verify_counterfactual, verify_factual


def _name() -> str:
    """Flow run and run have one name: `run_id`, or else arm, seed, and the name that Prefect drew; a retry keeps it."""
    given, drawn = dict(runtime.flow_run.parameters), str(runtime.flow_run.name)
    if run_id := given.pop("run_id", None):
        return str(run_id)
    try:
        settings = _settings(**given)
    except UserError:  # which the flow itself reports
        return drawn
    start = f"{settings.allocation.arm}-s{settings.run.seed}-"
    return drawn if drawn.startswith(start) else start + drawn


def _settings(
    params: str = "params.yaml",
    overrides: dict[str, Any] | None = None,
    arm: str | None = None,
    seed: int | None = None,
) -> Params:
    chosen = {"allocation.arm": arm, "run.seed": seed}
    return load_params(Path(params), {**(overrides or {}), **{k: v for k, v in chosen.items() if v is not None}})


@flow(name="trace", flow_run_name=_name)
def trace(
    params: str = "params.yaml",
    overrides: dict[str, Any] | None = None,
    arm: str | None = None,
    seed: int | None = None,
    run_id: str | None = None,
) -> str:
    """Trains a policy, or continues the run that `run_id` names; returns the run's folder.

    Args:
        params: Parameters file.
        overrides: Dotted keys to values, e.g. {"allocation.root_units": 256}.
        arm: Short for overrides of `allocation.arm`.
        seed: Short for overrides of `run.seed`.
        run_id: Name of the run; by default arm, seed, and a name that Prefect draws: grpo-s3-eager-mammoth.
    """
    clear_stop()
    settings = _settings(params, overrides, arm, seed)
    run = open_run(settings, run_id or runtime.flow_run.name)
    with lock(run, settings.run.store):
        run.note(commit=commit())
        data, policy = prepare_data(run.path), warm_up_policy(run.path)
        predictor: Path | None = None
        shown: UUID | None = None  # the run's table in Prefect
        with MlflowSync(run, tags={"data": data_hash(data), "warm_up": policy.name}) as sync:
            done = finished_iterations(run)
            mend_metrics(run, done)
            if done:
                policy, predictor = run.iteration(done - 1) / "policy", run.iteration(done - 1) / "predictor"
                retain(run.path, done - 1)  # left to do where the run was killed
            # A heartbeat's end costs a subflow 1 s; the run as a whole keeps its own.
            with temporary_settings({"flows.heartbeat_frequency": None}):
                for number in range(done, settings.run.iterations):
                    policy, predictor = iteration(run.path, run.run_id, number, policy, predictor)
                    sync.notify()
                    shown = show_run(run, number + 1, shown)
            evaluate(run.path, settings.run.iterations, policy=policy)
            write_summary(run)
            publish_report(run)
    return str(run.path)


@flow(name="iteration", flow_run_name="{run_id}-{number:04d}")
def iteration(run: Path, run_id: str, number: int, policy: Path, predictor: Path | None) -> tuple[Path, Path]:
    """One iteration of the method; returns the next policy and predictor."""
    start, settings = time.perf_counter(), Run(run).params
    evaluation = evaluate(run, number, policy=policy) if number % settings.evaluation.every == 0 else None

    scored = score_prompts(run, number, policy=policy, predictor=predictor)
    roots = allocate_roots(run, number, scored=scored)
    verified = side_by_side(grow, run, number, policy=policy, predictor=predictor, roots=roots)
    earlier = [
        Run(run).iteration(k) / "forest.parquet" for k in range(max(0, number - settings.predictor.replay), number)
    ]
    next_predictor = refit_predictor(
        run, number, policy=policy, predictor=predictor, verified=verified, earlier=earlier
    )
    next_policy = update_policy(run, number, policy=policy, verified=verified)

    forest, seconds = next_policy.parent / "forest.parquet", time.perf_counter() - start
    record(run, number, forest=forest, evaluation=evaluation, seconds=seconds)
    append_metrics(Run(run), number)
    retain(run, number)
    return next_policy, next_predictor


def grow(run: Path, number: int, *, policy: Path, predictor: Path | None, roots: Path, shard: Shard) -> Path:
    """Both stages of rollouts for a shard of the active prompts; returns the verified forest."""
    arm = ARMS[Run(run).params.allocation.arm]
    generated = generate(run, number, policy=policy, roots=roots, shard=shard)
    factual = verify_factual(run, number, forest=generated, shard=shard)
    if arm.refills:  # which has a single shard
        factual = refill_roots(run, number, policy=policy, roots=roots, factual=factual)
    if not arm.branches:
        return factual
    expanded = expand_prefixes(run, number, policy=policy, predictor=predictor, factual=factual, shard=shard)
    return verify_counterfactual(run, number, forest=expanded, shard=shard)
