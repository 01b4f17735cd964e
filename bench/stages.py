"""One iteration without Prefect: the stages of flows/train.py in their order, each timed in CPU seconds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from components.allocation.arms import ARMS
from tasks.expand import expand_prefixes
from tasks.refit import refit_predictor
from tasks.run import Run
from tasks.sample import allocate_roots, generate, refill_roots
from tasks.score import score_prompts
from tasks.update import update_policy
from tasks.verify import verify_counterfactual, verify_factual


def iterate(run: Run, number: int, policy: Path, predictor: Path | None) -> tuple[Path, Path, dict[str, float]]:
    """Runs an iteration, evaluation and record left out: the next policy and predictor, CPU seconds by stage."""
    seconds: dict[str, float] = {}

    def timed(name: str, task: Any, **inputs: Any) -> Path:
        begin = time.process_time()
        output: Path = task.fn(run.path, number, **inputs)
        seconds[name] = time.process_time() - begin
        return output

    scored = timed("score_prompts", score_prompts, policy=policy, predictor=predictor)
    roots = timed("allocate_roots", allocate_roots, scored=scored)
    generated = timed("generate", generate, policy=policy, roots=roots)
    verified, arm = timed("verify_factual", verify_factual, forest=generated), ARMS[run.params.allocation.arm]
    if arm.refills:
        verified = timed("refill_roots", refill_roots, policy=policy, roots=roots, factual=verified)
    if arm.branches:
        expanded = timed("expand_prefixes", expand_prefixes, policy=policy, predictor=predictor, factual=verified)
        verified = timed("verify_counterfactual", verify_counterfactual, forest=expanded)
    replayed = range(max(0, number - run.params.predictor.replay), number)
    earlier = [run.iteration(k) / "forest.parquet" for k in replayed]
    predictor = timed(
        "refit_predictor", refit_predictor, policy=policy, predictor=predictor, verified=verified, earlier=earlier
    )
    policy = timed("update_policy", update_policy, policy=policy, verified=verified)
    return policy, predictor, seconds
