"""Work for a Dask cluster, whose workers are processes on this machine or on others. Dask is imported when asked for.

A worker that dies gives its work back: Dask hands it to another, and to no more after four have died of it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.environments.base import Chat, Environment, Prompt, Transition
from components.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from components.config import EnvironmentParams

LOCAL = "local"
START_SECONDS = 60.0
LOOK_SECONDS = 30.0  # between looks at whether there are workers
PATIENCE_SECONDS = 600.0  # without any
LOST_WORKER = "distributed.deploy.lost-worker-timeout"
STEPS_PER_THREAD = 2  # on their way at the same time, for each thread of the cluster


@lru_cache(maxsize=1)
def connect(address: str) -> Any:
    """A client of a cluster: of a scheduler's address, or `LOCAL` for workers of this program's own, one per CPU.

    Raises:
        MissingExtraError: if Dask is not installed.
        UserError: if no scheduler answers, or no worker joins it within `START_SECONDS`.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise MissingExtraError(f"run.cluster: {address}", "dask") from error
    try:
        if address == LOCAL:
            dask.config.set({LOST_WORKER: PATIENCE_SECONDS})  # else one that starts anew for long is given up
            cluster = distributed.LocalCluster(host="127.0.0.1", threads_per_worker=1, dashboard_address="127.0.0.1:0")
            client = distributed.Client(cluster, set_as_default=False)
        else:
            client = distributed.Client(address, set_as_default=False, timeout=START_SECONDS)
        client.wait_for_workers(1, timeout=START_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).partition("\n")[0]
        advice = "start it with `dask scheduler` and `dask worker`, or use --set run.cluster=local"
        raise UserError(f"run.cluster={address!r}: no scheduler with workers there ({reason}); {advice}") from error
    return client


def settle(client: Any, futures: list[Any]) -> None:
    """Waits until all of these are done.

    Raises:
        UserError: if the cluster had no worker for `PATIENCE_SECONDS`, or its scheduler is gone.
    """
    from distributed import wait

    lonely = 0.0
    while any(not future.done() for future in futures):
        try:
            with client.as_current():
                wait(futures, timeout=LOOK_SECONDS)
        except TimeoutError:
            lonely = 0.0 if client.nthreads() else lonely + LOOK_SECONDS
            if lonely >= PATIENCE_SECONDS:
                raise lost(f"no worker for {lonely:.0f} s") from None
    if any(future.cancelled() for future in futures):
        raise lost("its scheduler is gone")


def lost(reason: str) -> UserError:
    advice = "start it again, or go on without it by --set run.cluster=null, and continue the run"
    return UserError(f"the cluster of run.cluster was lost ({reason}); {advice}")


class RemoteSteps:
    """An environment whose steps are taken by the workers of a cluster; for those that are slow.

    States and transitions travel, so they must pickle; each worker makes the environment itself, once. `parallel` tells
    how many steps can be under way at the same time, from as many threads.

    Args:
        address: The cluster, as `connect` takes it.
        environment: The environment here, for what comes before the first step.
        settings, cache: What the workers make theirs from.
    """

    def __init__(self, address: str, environment: Environment, settings: EnvironmentParams, cache: Path) -> None:
        self._client, self._here = connect(address), environment
        self._recipe = (settings.model_dump_json(), str(cache))
        self.parallel = STEPS_PER_THREAD * max(1, sum(self._client.nthreads().values()))

    def chat(self, prompt: Prompt) -> Chat:
        return self._here.chat(prompt)

    def reset(self, prompt: Prompt) -> Any:
        return self._here.reset(prompt)

    def step(self, state: Any, action: str) -> Transition:
        future = self._client.submit(_step, self._recipe, state, action, pure=False)
        settle(self._client, [future])
        transition: Transition = future.result()
        return transition


def _step(recipe: tuple[str, str], state: Any, action: str) -> Transition:
    return _environment(recipe).step(state, action)


@lru_cache(maxsize=2)
def _environment(recipe: tuple[str, str]) -> Environment:
    from components.config import EnvironmentParams
    from components.environments import ENVIRONMENTS

    settings = EnvironmentParams.model_validate(json.loads(recipe[0]))
    return ENVIRONMENTS[settings.name](settings, Path(recipe[1]))
