"""Shards in the flow itself, on a real temporary Prefect server: failures, kills, and what Prefect shows."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from components.environments import ENVIRONMENTS
from components.environments.multihop import MultiHop
from components.errors import UserError
from components.params.root import Params
from components.storage import read_sealed
from tasks import sample as sample_module
from tasks import verify as verify_module
from tasks.stage import read_stages, stopping
from tests.tasks.pipeline import fingerprints, new_run

SIZE = {"pool": 12, "root_units": 10}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prefect API of this module's own, which its flows use."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.temporary_server import prefect_api

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        with prefect_api(tmp_path_factory.mktemp("server")) as api:
            api.wait()
            with temporary_settings({PREFECT_API_URL: api.url}):
                yield api.url


def flow(params: Params, data_dir: Path, folder: Path, run_id: str, shards: int = 3):
    """A run, and what trains it or continues it."""
    from flows.train import trace

    sections = {"allocation": SIZE, "run": {"iterations": 1}, "engine": {"shards": shards}}
    run = new_run(params, data_dir, folder, run_id, **sections)
    return run, lambda: trace(params=str(run.path / "params.yaml"), run_id=run_id)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def undisturbed(server: str, params: Params, data_dir: Path, tmp_path_factory: pytest.TempPathFactory):
    run, train = flow(params, data_dir, tmp_path_factory.mktemp("runs"), "undisturbed")
    train()
    return run


def test_stages_of_shards_are_task_runs_of_their_own_and_leave_no_files(undisturbed, server):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        names = set()
        for _ in range(50):  # the server records task runs every few seconds
            names |= {task.name for task in client.read_task_runs(limit=200)}
            if "record" in names:
                break
            threading.Event().wait(0.2)
    stages = ("shard", "generate", "verify factual", "expand prefixes", "verify counterfactual")
    assert names >= {f"{stage} {shard}/3" for stage in stages for shard in (1, 2, 3)} | {"join shards"}
    left = {path.name for path in undisturbed.iteration(0).iterdir()}
    assert not left & {"shards", "generated.parquet", "verified.parquet"}
    line = undisturbed.metrics()[0]
    assert line["time/iteration"] >= max(line[f"time/{stage}"] for stage in ("generate", "expand_prefixes"))
    assert line["tokens/generated"] > 0
    assert line["budget/factual_rollouts"] == SIZE["root_units"]


def test_failing_shard_ends_the_run_and_the_others_keep_what_was_paid_for(
    undisturbed, params, data_dir, tmp_path, monkeypatch
):
    run, train = flow(params, data_dir, tmp_path, "fails")
    original, calls = verify_module.score_new, itertools.count(1)

    def score_new(settings, nodes):
        if next(calls) == 2:
            raise UserError("the grader is down; start it")
        return original(settings, nodes)

    monkeypatch.setattr(verify_module, "score_new", score_new)
    with pytest.raises(UserError, match="the grader is down; start it"):
        train()
    folders = sorted((run.iteration(0) / "shards").iterdir())
    ended = {folder: len(read_stages(folder)) for folder in folders}
    assert sorted(ended.values()) == [1, 4, 4]  # the one that failed had sampled its factual rollouts
    monkeypatch.undo()
    paid: list[str] = []
    sample_roots = sample_module.sample_roots
    monkeypatch.setattr(
        sample_module, "sample_roots", lambda context, *rest: paid.append(context.name) or sample_roots(context, *rest)
    )
    train()
    assert paid == []
    assert fingerprints(run) == fingerprints(undisturbed)


KILLED = """
import os, signal, sys, threading
from tasks import expand as module

original, seen, lock = module.visited_anchors, [], threading.Lock()

def visited_anchors(forest):
    with lock:
        seen.append(threading.get_ident())
        if len(seen) == 2:  # the second shard begins stage 2; the first and the third are somewhere
            os.kill(os.getpid(), signal.SIGKILL)
    return original(forest)

module.visited_anchors = visited_anchors
from flows.train import trace
trace(params=sys.argv[1], run_id="killed")
"""


def test_run_killed_with_shards_in_flight_ends_in_the_same_files(undisturbed, server, params, data_dir, tmp_path):
    run, train = flow(params, data_dir, tmp_path, "killed")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(run.path / "params.yaml")],
        env={**os.environ, "PREFECT_API_URL": server, "PREFECT_LOGGING_LEVEL": "CRITICAL"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    manifests = {path: read_sealed(path) for path in run.iteration(0).glob("shards/*/manifest.json")}
    done = [set(manifest) for manifest in manifests.values()]
    assert sum("verify_factual" in stages for stages in done) >= 2
    assert not all("expand_prefixes" in stages for stages in done)
    train()
    assert fingerprints(run) == fingerprints(undisturbed)


def test_interrupt_ends_all_shards_at_their_next_turn(server, params, data_dir, tmp_path, monkeypatch):
    pressed = itertools.count()

    class Interrupted(MultiHop):  # Ctrl-C at the first turn; no tool answers before the flow has heard of it
        def step(self, state, action):
            if next(pressed) == 0:
                os.kill(os.getpid(), signal.SIGINT)
            assert stopping.wait(60)
            return super().step(state, action)

    run, train = flow(params, data_dir, tmp_path, "interrupted")
    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Interrupted)
    monkeypatch.setattr("flows.train.evaluate", lambda *_, **__: None)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # parallel test processes ignore it
    try:
        with pytest.raises((KeyboardInterrupt, Exception)) as raised:
            train()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert not isinstance(raised.value, AssertionError)
    assert not list(run.iteration(0).glob("shards/*/manifest.json"))
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name and thread.is_alive()]


def test_shard_that_is_long_in_coming_is_named(monkeypatch, caplog):
    from flows import shards

    futures: dict[tuple[int, int], Future[Path]] = {(index, 3): Future() for index in range(3)}
    futures[1, 3].set_result(Path("one"))

    class Late(logging.Handler):
        def emit(self, record):
            for index in (0, 2):
                futures[index, 3].set_result(Path("late"))

    monkeypatch.setattr(shards, "PATIENCE", 0.05)
    handler = Late(logging.WARNING)
    logging.getLogger("trace").addHandler(handler)
    try:
        shards._await(futures)
    finally:
        logging.getLogger("trace").removeHandler(handler)
    assert "still waiting for shard 1/3, shard 3/3" in caplog.text
