"""Update: one policy step on the forest, and the forest with the values and advantages that it used."""

from __future__ import annotations

import math
from pathlib import Path

from components.build import make_trainer
from components.errors import UserError
from components.seeds import derive_seed
from components.storage import atomic_path, read_parquet, write_parquet
from components.tree.schema import NODE_SCHEMA, with_columns
from components.tree.values import leaf_values
from tasks.inputs import shared_forest
from tasks.stage import Context, stage


@stage("update policy", output="policy", also=("forest.parquet",))
def update_policy(context: Context, policy: Path, verified: Path) -> dict[str, float]:
    """Writes the next policy, and `forest.parquet` with the columns `value` and `advantage` filled."""
    params = context.params
    forest = shared_forest(verified)
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
    columns = {
        "value": [float(value) if leaves else None for value, leaves in zip(value_N, leaves_N, strict=True)],
        "advantage": [None if math.isnan(advantage) else advantage for advantage in update.advantage_N],
    }
    write_parquet(context.folder / "forest.parquet", with_columns(read_parquet(verified, NODE_SCHEMA), columns))
    return update.metrics
