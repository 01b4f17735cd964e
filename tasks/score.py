"""Score: the predictor's belief about every candidate prompt of the iteration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from components.build import make_environment, make_predictor
from components.predictor.base import Prefix, believe
from components.seeds import derive_seed
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
CHUNK = 4096  # prompts that the predictor sees at once: features of all of a large pool would not fit in memory


@stage("score prompts", output="scored.parquet")
def score_prompts(context: Context, policy: Path, predictor: Path | None) -> dict[str, float]:
    """Draws the candidate pool and writes what the predictor believes of each prompt in it.

    The pool depends on the run's seed and the iteration alone, so a continued run sees the same prompts.
    """
    from components.policy.renderer import Renderer

    params = context.params
    train = prompts(params, "train")
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "pool"))
    ids = list(train)
    pool = [ids[i] for i in rng.choice(len(ids), size=params.allocation.pool, replace=False)]
    renderer, environment = Renderer.load(policy), make_environment(params)
    model = make_predictor(params, policy, predictor)
    beliefs = []
    for first in range(0, len(pool), CHUNK):
        chunk = [train[p] for p in pool[first : first + CHUNK]]
        beliefs.append(believe(model, [Prefix.root(p, renderer.prompt_ids(environment.chat(p))) for p in chunk]))
    mean_P = np.concatenate([belief.mean_A for belief in beliefs])
    concentration_P = np.concatenate([belief.concentration_A for belief in beliefs])
    write_parquet(context.output, pa.table([pool, mean_P, concentration_P], schema=SCORED_SCHEMA))
    return {"v_hat_mean": float(mean_P.mean()), "v_hat_std": float(mean_P.std())}
