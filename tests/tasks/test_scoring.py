"""Verification and environment steps on a cluster of two worker processes: as here, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.build import make_sampler
from components.environments import ENVIRONMENTS
from components.environments.base import Prompt
from components.environments.multihop import MultiHop
from components.environments.verify import verify_all
from components.errors import UserError
from components.params.root import Params, RunParams
from components.policy.rollout import Start
from components.tree.schema import Status
from components.workers import cluster
from tasks import verify as scoring
from tasks.verify import score_answers
from tests.slow_workers import JUDGED, Slow, SlowSteps


@pytest.fixture(scope="module")
def cluster_of_two(tmp_path_factory) -> Iterator[Any]:
    """Two workers; one that a test kills is started again."""
    distributed = pytest.importorskip("distributed")
    import dask

    settings = {"distributed.scheduler.allowed-failures": 1, cluster.LOST_WORKER: 600}
    with pytest.MonkeyPatch.context() as patch, dask.config.set(settings):
        patch.setenv(JUDGED, str(tmp_path_factory.mktemp("judged") / "lines"))
        with distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            preload=["tests.slow_workers"],
        ) as two:
            clients = cluster.connect(two.scheduler_address), scoring._client(two.scheduler_address)
            yield two
            two.wait_for_workers(2, timeout=120)  # one that is closed while it starts may never end
            for client in clients:
                client.close()
            scoring._client.cache_clear()
            cluster.connect.cache_clear()


@pytest.fixture
def address(cluster_of_two) -> str:
    """The scheduler's address, once both workers are there."""
    cluster_of_two.wait_for_workers(2, timeout=120)
    return str(cluster_of_two.scheduler_address)


@pytest.fixture
def judged():
    """Path of the lines that the judged cases leave."""
    path = Path(os.environ[JUDGED])
    path.write_text("")
    return path


def _cases(count: int) -> list[tuple[Prompt, str | None]]:
    answers = ["right", "wrong", None, "fault"]
    return [(Prompt(f"p{number}", "?", "right"), answers[number % 4]) for number in range(count)]


def _on(params: Params, address: str | None, **run) -> Params:
    return params.model_copy(update={"run": params.run.model_copy(update={"cluster": address, **run})})


def _verdicts(outcomes):
    return [(o.reward, o.status, o.detail) for o in outcomes]


def test_a_cluster_judges_as_this_process_does_in_order(params, address, judged):
    cases = _cases(100)
    assert _verdicts(score_answers(_on(params, address), cases)) == _verdicts(verify_all(Slow(), cases))
    pids = {line.split()[0] for line in judged.read_text().splitlines()} - {str(os.getpid())}
    assert len(pids) == 2


def test_steps_on_a_cluster_give_the_same_rollouts(params, address, random_policy, monkeypatch, tmp_path):
    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", SlowSteps)
    local, remote = (
        make_sampler(_on(params, where, cluster_steps=where is not None, data_dir=str(tmp_path)), random_policy, 0)
        for where in (None, address)
    )
    assert local.environment.parallel_steps == 1
    assert remote.environment.parallel_steps > 1
    stream = MultiHop().generate(np.random.default_rng(0), {1: 1.0}, 1.5)
    prompts = [next(stream) for _ in range(12)]

    def rollouts(sampler):
        starts = [
            Start(p, tree, tree, 0, 0, sampler.renderer.prompt_ids(sampler.environment.chat(p)),
                  sampler.environment.reset(p), tree)
            for tree, p in enumerate(prompts)
        ]  # fmt: skip
        return sampler.sample(starts, len(prompts))

    here = rollouts(local)
    assert repr(rollouts(remote)) == repr(here)
    assert Status.ERROR in {node.status for node in here}


def test_a_worker_killed_in_the_middle_loses_nothing_and_makes_no_wrong_answer(params, address, judged):
    cases = _cases(200)
    killed = []

    def kill():
        while not killed:
            lines = judged.read_text().splitlines()
            if len(lines) >= 40:
                killed.append(int(lines[-1].split()[0]))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    outcomes = score_answers(_on(params, address), cases)
    thread.join()
    assert killed
    assert _verdicts(outcomes) == _verdicts(verify_all(Slow(), cases))
    assert judged.read_text().count("\n") > 2 * len(cases)  # some were judged once more


def test_a_case_that_kills_its_workers_has_no_reward_and_spares_its_neighbours(params, address, judged):
    cases = _cases(6)
    poison = (Prompt("poison", "?", "right"), "poison")
    outcomes = score_answers(_on(params, address), [*cases[:3], poison, *cases[3:]])
    assert (outcomes[3].reward, outcomes[3].status) == (None, Status.ERROR)
    assert "died" in str(outcomes[3].detail)
    assert _verdicts(outcomes[:3] + outcomes[4:]) == _verdicts(verify_all(Slow(), cases))


def test_a_cluster_that_loses_its_workers_stops_the_run_before_a_verdict(params, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 0.1)
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty:
        client = distributed.Client(empty, set_as_default=False)
        monkeypatch.setattr(scoring, "_client", lambda address: client)
        with pytest.raises(UserError, match=r"cluster of run\.cluster was lost \(no worker for 0 s\); start it again"):
            score_answers(_on(params, empty.scheduler_address), _cases(1))
        client.close()


def test_no_scheduler_is_one_line(params, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "START_SECONDS", 0.5)
    cluster.connect.cache_clear()
    with pytest.raises(UserError, match=r"run\.cluster='tcp://127\.0\.0\.1:9': no scheduler with workers there .*dask"):
        score_answers(_on(params, "tcp://127.0.0.1:9"), _cases(1))


def test_steps_elsewhere_need_a_cluster():
    with pytest.raises(ValueError, match="cluster_steps needs a cluster"):
        RunParams(cluster_steps=True)
    with pytest.raises(ValueError, match=r"cluster='somewhere' is no address"):
        RunParams(cluster="somewhere")
