"""Allocate, stage 1: bare rollouts for each prompt of the pool, planned over the whole pool before sampling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from components.allocation import ARMS
from components.allocation.base import Belief
from components.policy.rollout import derive_seed
from components.storage import read_parquet, write_parquet
from tasks.score_prompts import SCORED_SCHEMA
from tasks.stage import Context, stage

ROOTS_SCHEMA = SCORED_SCHEMA.append(pa.field("allocated", pa.int64(), nullable=False))  # m_i; 0: skipped


@stage("allocate roots", output="roots.parquet")
def allocate_roots(context: Context, scored: Path) -> dict[str, float]:
    """Writes the counts m_i of the arm's root rule (Eq. 13 for `trace`)."""
    params = context.params
    table = read_parquet(scored, SCORED_SCHEMA)
    belief = belief_of(table)
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "roots"))
    counts = ARMS[params.allocation.arm].plan_roots(belief, params.allocation.shape, rng)
    write_parquet(context.output, pa.table([*table.columns, pa.array(counts, pa.int64())], schema=ROOTS_SCHEMA))
    return {"active_prompts": float((counts > 0).sum()), "bare_rollouts": float(counts.sum())}


def belief_of(table: pa.Table) -> Belief:
    """What the predictor believes of the pool's prompts."""
    return Belief(table["v_hat"].to_numpy(), table["concentration"].to_numpy())
