"""Judge: the outcomes of many rollouts, here or on a cluster, where each worker has a pool that can be killed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext

from components.config import EnvironmentParams, Params
from components.environments import Prompt
from components.tree.schema import Status
from components.verifiers import Outcome, make_verifier, verify_all
from components.workers.cluster import connect, settle

CHUNK = 32  # rollouts judged by one task

Cases = Sequence[tuple[Prompt, str | None]]


def judge(params: Params, cases: Cases) -> list[Outcome]:
    """The outcomes in the order of the cases: `verify_all`, on the cluster of `run.cluster` where there is one.

    A case of which worker after worker dies has the status `error`.

    Raises:
        UserError: if a package is missing, here or on a worker, or the cluster cannot be reached or is lost.
    """
    verifier = make_verifier(params.environment)  # what it lacks is told here
    if params.run.cluster is None or not cases:
        return verify_all(verifier, cases)
    chunks = [cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK)]
    judged = _spread(params, chunks)
    for index in [index for index, outcomes in enumerate(judged) if isinstance(outcomes, str)]:
        # One case may have killed the workers, and whatever else was with them: each on its own, one after the other.
        alone = [_spread(params, [[case]])[0] for case in chunks[index]]
        judged[index] = [outcome for part in alone for outcome in _outcomes(part)]
    return [outcome for outcomes in judged for outcome in _outcomes(outcomes)]


@task(name="verify chunk", task_run_name="verify chunk", cache_policy=NO_CACHE, persist_result=False)
def verify_chunk(environment: EnvironmentParams, cases: Cases) -> list[Outcome]:
    """The outcomes of some rollouts, on whatever machine this runs."""
    return verify_all(make_verifier(environment), cases)


def _spread(params: Params, chunks: Sequence[Cases]) -> list[list[Outcome] | str]:
    """The outcomes of each chunk, or why worker after worker died of it."""
    from distributed import KilledWorker

    client: Any = _client(str(params.run.cluster))
    work = verify_chunk if FlowRunContext.get() else verify_chunk.fn  # outside Prefect there is no run to show it in
    futures = [client.submit(work, params.environment, chunk, pure=False) for chunk in chunks]
    settle(client, futures)
    judged: list[list[Outcome] | str] = []
    for future in futures:
        try:
            judged.append(future.result())
        except KilledWorker as error:
            judged.append(str(error))
    return judged


def _outcomes(judged: list[Outcome] | str) -> list[Outcome]:
    return [Outcome(None, Status.ERROR, 0.0, judged)] if isinstance(judged, str) else judged


@lru_cache(maxsize=1)
def _client(address: str) -> Any:
    """A client that submits Prefect tasks as well."""
    from prefect_dask.client import PrefectDaskClient

    return PrefectDaskClient(connect(address).scheduler.address, set_as_default=False)
