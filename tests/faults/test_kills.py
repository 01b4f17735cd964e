"""A run that is killed anywhere and continued by the same command ends as if nothing had happened.

The long version, with a hundred kills, is bench/kills.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from components.storage import content_hash, read_parquet
from tests.faults.attempts import Ending, Kill, attempt, left_behind, project, role
from tests.faults.runs import CAMPAIGNS

TREE = CAMPAIGNS["grpo-filter, mixture"]
STAGE = "run/iterations/*"


def at(kind: str, file: str) -> Kill:
    """Before an event at a file; where it is a synchronisation, half of the file is lost."""
    return Kill(event=(kind, file), torn=kind == "fsync")


CHAIN = [
    at("fsync", "run/params.yaml~tmp"), at("replace", "run/manifest.json~tmp"),
    at("fsync", f"{STAGE}/manifest.json~tmp"), at("replace", f"{STAGE}/generated.parquet~tmp"),
    at("fsync", f"{STAGE}/refilled.parquet~tmp"), at("fsync", f"{STAGE}/predictor~tmp/head.safetensors"),
    at("replace", f"{STAGE}/policy~tmp"), at("replace", f"{STAGE}/forest.parquet~tmp"),
    at("fsync", "run/metrics.jsonl"), at("unlink", f"{STAGE}/generated.parquet"), Kill(number=5), Kill(after=0.3),
    at("rmdir", f"{STAGE}/policy"), at("replace", "run/summary.json~tmp"), at("replace", "run/report.html~tmp"),
]  # fmt: skip


@pytest.fixture(scope="module")
def alone(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ending]:
    root = project(tmp_path_factory.mktemp("alone"), TREE, small_data)
    return root, attempt(root)


@pytest.fixture(scope="module")
def killed(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ending]]:
    root = project(tmp_path_factory.mktemp("killed"), TREE, small_data)
    return root, [attempt(root, kill) for kill in [*CHAIN, None]]


def test_c62_c65_killed_run_ends_in_the_files_of_one_left_alone(alone, killed):
    root, endings = killed
    assert [ending.code for ending in endings] == [-9] * len(CHAIN) + [0], endings[-1].said
    assert [e.event for e, k in zip(endings, CHAIN, strict=False) if k.event] == [k.event for k in CHAIN if k.event]
    assert left_behind(root / "runs" / "r") == left_behind(alone[0] / "runs" / "r")


def test_c62_no_prompt_is_repeated_or_skipped(alone, killed):
    def asked(root: Path) -> list[list[str]]:
        files = sorted((root / "runs" / "r" / "iterations").glob("*/scored.parquet"))
        return [read_parquet(file)["prompt_id"].to_pylist() for file in files]

    assert len(asked(alone[0])) == TREE["run"]["iterations"]
    assert asked(killed[0]) == asked(alone[0])


def test_an_undisturbed_run_changes_every_kind_of_file_that_is_killed_at(alone):
    events = set(alone[1].events)
    assert {kill.event for kill in CHAIN if kill.event} <= events


def test_killed_while_data_and_first_policy_are_made(tmp_path):
    """Their folder belongs to all runs, so nothing half-made may be found there."""
    warmup = {"steps": 3, "batch_size": 4, "hops": {1: 1.0}}
    tree = TREE | {"run": TREE["run"] | {"iterations": 1}, "policy": {"layers": 1, "hidden": 16, "warmup": warmup}}
    killed, alone = project(tmp_path / "killed", tree), project(tmp_path / "alone", tree)
    for made in ("multihop/*~tmp/card.json", "warmup/multihop/*~tmp/model.safetensors"):
        assert attempt(killed, at("fsync", f"data/{made}")).event == ("fsync", f"data/{made}")
    for root in (killed, alone):
        assert (ending := attempt(root)).code == 0, ending.said
    assert left_behind(killed / "data") == left_behind(alone / "data") | {
        str(path.relative_to(killed / "data")): content_hash(path)
        for path in (killed / "data").rglob("*")
        if "~" in role(f"data/{path.relative_to(killed / 'data')}") and path.is_file()
    }
    assert left_behind(killed / "runs" / "r") == left_behind(alone / "runs" / "r")


def test_c63_c67_every_session_goes_on_and_retention_holds_over_three_of_them(small_data, tmp_path):
    """A session ends where the pool is used up: an epoch, were there any."""
    pool = {"train_prompts": TREE["allocation"]["pool"]}
    for iterations in (2, 4, 6):
        settings = {"iterations": iterations, "threads": 1, "keep_policies": 2, "keep_forests": 1}
        tree = TREE | {"run": settings, "environment": TREE["environment"] | pool}
        root = project(tmp_path, tree | {"predictor": TREE["predictor"] | {"replay": 1}}, small_data)
        run = root / "runs" / "r"
        assert attempt(root, at("unlink", f"{STAGE}/generated.parquet")).code == -9
        assert (ending := attempt(root)).code == 0, ending.said
        assert (run / "metrics.jsonl").read_text().count("\n") == iterations
        for name in ("policy", "predictor", "forest.parquet"):  # with replay=1, a policy's refit needs one forest
            kept = {int(path.parent.name) for path in run.glob(f"iterations/*/{name}")}
            assert {iterations - 2, iterations - 1} <= kept
            assert len(kept) <= 3  # and the best
        assert not list(run.glob("iterations/*/verified.parquet"))
