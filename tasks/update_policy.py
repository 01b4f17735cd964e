"""Update: one policy step on the forest, and the forest with the values and advantages that it used."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from components.errors import UserError
from components.policy import make_trainer
from components.policy.rollout import derive_seed
from components.storage import atomic_path
from components.tree.values import leaf_values
from tasks.inputs import read_forest, write_forest
from tasks.stage import Context, stage


@stage("update policy", output="policy", also=("forest.parquet",))
def update_policy(context: Context, policy: Path, verified: Path) -> dict[str, float]:
    """Writes the next policy, and `forest.parquet` with the columns `value` and `advantage` filled."""
    params = context.params
    torch.set_num_threads(params.run.threads)
    forest = read_forest(verified)
    with atomic_path(context.output) as temporary:
        seed = derive_seed(params.run.seed, context.iteration, "update")
        try:
            update = make_trainer(params).update(forest, policy, temporary, seed, fresh=context.iteration == 0)
        except FloatingPointError as error:
            raise UserError(
                f"iteration {context.iteration}: {error}; no policy was written and all before it is kept; start a run "
                f"with a lower update.learning_rate than {params.update.learning_rate:g}"
            ) from error
    value_N, leaves_N = leaf_values(forest)
    for node, value, leaves, advantage in zip(forest.nodes, value_N, leaves_N, update.advantage_N, strict=True):
        node.value = float(value) if leaves else None
        node.advantage = None if math.isnan(advantage) else advantage
    write_forest(context.folder / "forest.parquet", forest)
    return update.metrics
