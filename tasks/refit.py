"""Refit: the predictor learns from the iteration's verified forest, after its predictions were judged on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.build import make_predictor
from components.predictor.base import Prefix, prefixes_of
from components.predictor.metrics import prediction_metrics
from components.seeds import derive_seed
from components.storage import atomic_path
from components.tree.values import own_rollouts
from tasks.inputs import prompts, shared_forest
from tasks.stage import Context, stage


@stage("refit predictor", output="predictor")
def refit_predictor(
    context: Context, policy: Path, predictor: Path | None, verified: Path, earlier: list[Path]
) -> dict[str, float]:
    """Writes the predictor fitted on the rollouts through all roots and prefixes of this and `earlier` forests."""
    params = context.params
    train = prompts(params, "train")
    forests = [shared_forest(path) for path in (verified, *reversed(earlier))]
    metrics = prediction_metrics(forests[0], forests[1:])
    model = make_predictor(params, policy, predictor)
    prefixes: list[Prefix] = []
    labels: list[tuple[np.ndarray, np.ndarray]] = []
    for forest in forests:
        sum_N, count_N = own_rollouts(forest)
        rows = np.flatnonzero(~forest.is_terminal_N & (count_N > 0))
        prefixes += prefixes_of(forest, rows.tolist(), train)
        labels.append((sum_N[rows], count_N[rows]))
    successes, trials = (np.concatenate(each) for each in zip(*labels, strict=True))
    seed = derive_seed(params.run.seed, context.iteration, "predictor")
    metrics |= model.fit(prefixes, successes, trials, len(labels[0][0]), seed)
    with atomic_path(context.output) as temporary:
        model.save(temporary)
    return metrics
