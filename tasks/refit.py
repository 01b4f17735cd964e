"""Refit: the predictor learns from the iteration's verified forest, after its predictions were judged on it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from components.build import make_predictor
from components.predictor.base import Prefix, labels_of
from components.predictor.metrics import prediction_metrics
from components.seeds import derive_seed
from components.storage import atomic_path, content_hash
from tasks.inputs import prompts, shared_forest
from tasks.run import Run
from tasks.stage import Context, stage


@stage("refit predictor", output="predictor")
def refit_predictor(
    context: Context, policy: Path, predictor: Path | None, verified: Path, earlier: list[Path]
) -> dict[str, float]:
    """Writes the predictor fitted on the rollouts through all roots and prefixes of this and `earlier` forests."""
    params, paths = context.params, [verified, *reversed(earlier)]
    forests = [shared_forest(path) for path in paths]
    metrics = prediction_metrics(forests[0], forests[1:])
    model = make_predictor(params, policy, predictor)
    labels = [_labels(context.run, path, content_hash(path)) for path in paths]
    prefixes = [prefix for each, _, _ in labels for prefix in each]
    successes, trials = (np.concatenate([label[part] for label in labels]) for part in (1, 2))
    seed = derive_seed(params.run.seed, context.iteration, "predictor")
    metrics |= model.fit(prefixes, successes, trials, len(labels[0][0]), seed)
    with atomic_path(context.output) as temporary:
        model.save(temporary)
    return metrics


@lru_cache(maxsize=6)  # those of a refit by default, and the iteration's own before its update
def _labels(run: Run, path: Path, content: str) -> tuple[list[Prefix], np.ndarray, np.ndarray]:
    """The labels of a forest, which the next refits need again; `content` tells what is in the file."""
    return labels_of(shared_forest(path), prompts(run.params, "train"))
