"""Refit: the predictor learns from the iteration's verified forest, after its predictions were judged on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.policy.rollout import derive_seed
from components.predictor import make_predictor
from components.predictor.metrics import prediction_metrics
from components.storage import atomic_path
from components.tree.forest import Forest
from components.tree.values import leaf_values
from tasks.inputs import read_forest
from tasks.stage import Context, stage


@stage("refit predictor", output="predictor")
def refit_predictor(
    context: Context, policy: Path, predictor: Path | None, verified: Path, earlier: list[Path]
) -> dict[str, float]:
    """Writes the predictor fitted on the targets of Eq. 18 at all roots and prefixes of this and `earlier` forests."""
    params = context.params
    forest = read_forest(verified)
    metrics = prediction_metrics(forest, np.array([np.nan if n.v_hat is None else n.v_hat for n in forest.nodes]))
    model = make_predictor(params.predictor, policy)
    if predictor is not None:
        model.load(predictor)
    prefixes: list[list[int]] = []
    targets: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for each in [forest, *(read_forest(path) for path in earlier)]:
        rows, value, count = _labels(each)
        prefixes += [each.prefix_ids(int(row)) for row in rows]
        targets.append(value)
        weights.append(count)
    seed = derive_seed(params.run.seed, context.iteration, "predictor")
    metrics |= model.fit(prefixes, np.concatenate(targets), np.concatenate(weights), seed)
    with atomic_path(context.output) as temporary:
        model.save(temporary)
    return metrics


def _labels(forest: Forest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the turn boundaries with at least one scored leaf below, their values and their numbers of leaves."""
    value_N, leaves_N = leaf_values(forest)
    rows = np.flatnonzero(~forest.is_terminal_N & (leaves_N > 0))
    return rows, value_N[rows], leaves_N[rows]
