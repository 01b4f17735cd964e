"""Score: the predictor's belief about every candidate prompt of the iteration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from components.policy import make_environment
from components.policy.renderer import Renderer
from components.policy.rollout import derive_seed
from components.predictor import Prefix, believe, make_predictor
from components.storage import write_parquet
from tasks.inputs import prompts
from tasks.stage import Context, stage

SCORED_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("v_hat", pa.float64(), nullable=False),  # mean of the belief about the prompt's success rate
        pa.field("concentration", pa.float64(), nullable=False),  # alpha + beta of the belief
    ]
)


@stage("score prompts", output="scored.parquet")
def score_prompts(context: Context, policy: Path, predictor: Path | None) -> dict[str, float]:
    """Draws the candidate pool and writes what the predictor believes of each prompt in it.

    The pool depends on the run's seed and the iteration alone, so a continued run sees the same prompts.
    """
    params = context.params
    train = prompts(params, "train")
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "pool"))
    ids = list(train)
    pool = [ids[i] for i in rng.choice(len(ids), size=params.allocation.pool, replace=False)]
    renderer, task = Renderer.load(policy), make_environment(params)
    model = make_predictor(params, policy, predictor)
    belief = believe(model, [Prefix.root(train[p], renderer.prompt_ids(task.chat(train[p]))) for p in pool])
    write_parquet(context.output, pa.table([pool, belief.mean_A, belief.concentration_A], schema=SCORED_SCHEMA))
    return {"v_hat_mean": float(belief.mean_A.mean()), "v_hat_std": float(belief.mean_A.std())}
