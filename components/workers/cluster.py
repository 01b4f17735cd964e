"""Work for a Dask cluster, whose workers are processes on this machine or on others. Dask is imported when asked for.

A worker that dies gives its work back: Dask hands it to another, and to no more after four have died of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from components.environments.base import Chat, Environment, EnvironmentParams, Prompt, Transition
from components.errors import MissingExtraError, UserError

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


def wait_for(client: Any, futures: list[Any]) -> None:
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


class RemoteSteps(Environment):
    """An environment whose steps are taken by the workers of a cluster; for those that are slow.

    States and transitions travel, so they must pickle; each worker makes the environment itself, once.

    Args:
        address: The cluster, as `connect` takes it.
        environment: The environment here, for all but the steps.
        plugins: Modules that the workers import first.
    """

    def __init__(self, address: str, environment: Environment, plugins: list[str]) -> None:
        super().__init__(environment.params, environment.cache)
        self._client, self._here = connect(address), environment
        self._recipe = recipe_of(environment.params, plugins, environment.cache)
        self.parallel_scores = environment.parallel_scores
        self.parallel_steps = STEPS_PER_THREAD * max(1, sum(self._client.nthreads().values()))

    def chat(self, prompt: Prompt) -> Chat:
        return self._here.chat(prompt)

    def reset(self, prompt: Prompt) -> Any:
        return self._here.reset(prompt)

    def score(self, prompt: Prompt, answer: str | None) -> float:
        return self._here.score(prompt, answer)

    def step(self, state: Any, action: str) -> Transition:
        future = self._client.submit(_step, self._recipe, state, action, pure=False)
        wait_for(self._client, [future])
        transition: Transition = future.result()
        return transition


Recipe = tuple[str, tuple[str, ...], str]  # an environment that travels: its section as JSON, plug-ins, cache


def recipe_of(section: EnvironmentParams, plugins: Sequence[str], cache: Path) -> Recipe:
    """What `environment_from` makes an environment of, on any machine."""
    return section.model_dump_json(), tuple(plugins), str(cache)


@lru_cache(maxsize=2)
def environment_from(recipe: Recipe) -> Environment:
    """The environment of a recipe, made once in a process."""
    from components.environments import ENVIRONMENTS
    from components.registry import load_plugins

    section, plugins, cache = recipe
    load_plugins(plugins)
    kind = ENVIRONMENTS[json.loads(section)["name"]]
    return kind(kind.Params.model_validate_json(section), Path(cache))


def _step(recipe: Recipe, state: Any, action: str) -> Transition:
    return environment_from(recipe).step(state, action)
