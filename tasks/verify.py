"""Verify: a terminal reward, or a status that says why there is none, for every leaf that has neither yet.

Answers are scored here, or on a cluster, where each worker has processes that can be killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext

from components.build import make_environment
from components.environments.base import Prompt
from components.environments.verify import Outcome, verify_all
from components.params.root import Params
from components.storage import read_parquet, write_parquet
from components.tree.schema import NODE_SCHEMA, Node, Status, table_to_nodes, with_columns
from components.workers.cluster import Recipe, connect, environment_from, recipe_of, wait_for
from tasks.inputs import prompts
from tasks.stage import WHOLE, Context, Shard, stage

CHUNK = 32  # answers scored by one task of a cluster

Cases = Sequence[tuple[Prompt, str | None]]

logger = logging.getLogger("trace")


def _verify(context: Context, forest: Path, shard: Shard = WHOLE) -> dict[str, float]:
    """Writes the forest with the rewards of its new leaves; the other nodes stay a table."""
    table = read_parquet(forest, NODE_SCHEMA)
    is_leaf_N = table["stop_reason"].is_valid().to_numpy()
    leaves = table_to_nodes(table.filter(is_leaf_N))
    new = score_new(context.params, leaves)
    reward, status = table["reward"].to_pylist(), table["status"].to_pylist()
    for row, leaf in zip(np.flatnonzero(is_leaf_N).tolist(), leaves, strict=True):
        reward[row], status[row] = leaf.reward, leaf.status
    write_parquet(context.output, with_columns(table, {"reward": reward, "status": status}))
    return {"verified": float(len(new)), "unscored": float(sum(n.reward is None for n in new))}


def score_new(params: Params, nodes: list[Node]) -> list[Node]:
    """Gives a reward, or a status that says why there is none, to the leaves that have neither; returns these."""
    train = prompts(params, "train")
    new = [n for n in nodes if n.is_terminal and n.reward is None and n.status == Status.OK]
    failures: list[str] = []
    cases = [(train[n.prompt_id], n.answer) for n in new]
    for node, outcome in zip(new, score_answers(params, cases), strict=True):
        node.reward, node.status = outcome.reward, outcome.status
        if outcome.detail is not None:
            failures.append(outcome.detail)
    if failures:
        logger.warning("%d of %d rollouts could not be verified; the first: %s", len(failures), len(new), failures[0])
    return new


verify_factual: Callable[..., Path] = stage("verify factual", output="factual.parquet")(_verify)
verify_counterfactual: Callable[..., Path] = stage("verify counterfactual", output="verified.parquet")(_verify)


def score_answers(params: Params, cases: Cases) -> list[Outcome]:
    """The outcomes in the order of the cases: `verify_all`, on the cluster of `run.cluster` where there is one.

    A case of which worker after worker dies has the status `error`.

    Raises:
        UserError: if a package is missing, here or on a worker, or the cluster cannot be reached or is lost.
    """
    environment = make_environment(params)  # what it lacks is reported here
    if params.run.cluster is None or not cases:
        return verify_all(environment, cases)
    chunks = [cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK)]
    scored = _spread(params, chunks)
    for index in [index for index, outcomes in enumerate(scored) if isinstance(outcomes, str)]:
        # One case may have killed the workers, and whatever else was with them: each on its own, one after the other.
        alone = [_spread(params, [[case]])[0] for case in chunks[index]]
        scored[index] = [outcome for part in alone for outcome in _outcomes(part)]
    return [outcome for outcomes in scored for outcome in _outcomes(outcomes)]


@task(name="verify chunk", task_run_name="verify chunk", cache_policy=NO_CACHE, persist_result=False)
def verify_chunk(recipe: Recipe, cases: Cases) -> list[Outcome]:
    """The outcomes of some rollouts, on whatever machine this runs."""
    return verify_all(environment_from(recipe), cases)


def _spread(params: Params, chunks: Sequence[Cases]) -> list[list[Outcome] | str]:
    """The outcomes of each chunk, or why worker after worker died of it."""
    from distributed import KilledWorker

    client: Any = _client(str(params.run.cluster))
    recipe = recipe_of(params.environment, params.plugins, (Path(params.run.data_dir) / "cache").absolute())
    work = verify_chunk if FlowRunContext.get() else verify_chunk.fn  # outside Prefect there is no run to show it in
    futures = [client.submit(work, recipe, chunk, pure=False) for chunk in chunks]
    wait_for(client, futures)
    scored: list[list[Outcome] | str] = []
    for future in futures:
        try:
            scored.append(future.result())
        except KilledWorker as error:
            scored.append(str(error))
    return scored


def _outcomes(scored: list[Outcome] | str) -> list[Outcome]:
    return [Outcome(None, Status.ERROR, 0.0, scored)] if isinstance(scored, str) else scored


@lru_cache(maxsize=1)
def _client(address: str) -> Any:
    """A client that submits Prefect tasks as well."""
    from prefect_dask.client import PrefectDaskClient

    return PrefectDaskClient(connect(address).scheduler.address, set_as_default=False)
