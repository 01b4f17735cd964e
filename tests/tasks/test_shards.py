"""Shards of an iteration: the same rollouts as without, whatever the order in which the shards work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from components.allocation.arms import ARMS
from components.environments import ENVIRONMENTS
from components.environments.multihop import MultiHop
from components.storage import content_hash
from components.tree.forest import Forest
from components.tree.schema import Node
from tasks import expand as expand_module
from tasks.expand import expand_prefixes
from tasks.inputs import read_forest
from tasks.prepare import prepare_data, warm_up_policy
from tasks.run import Run
from tasks.sample import allocate_roots, generate
from tasks.score import score_prompts
from tasks.shards import join_shards, shards_of
from tasks.stage import Stopped, read_stages, stopping
from tasks.verify import verify_counterfactual, verify_factual
from tests.tasks.pipeline import new_run

LOCAL = ["trace", "trace-root", "trace-prefix", "treepo", "entropy-tree", "infotree", "grpo"]  # a flat one as well


def begin(params, data_dir: Path, folder: Path, shards: int, run_id: str = "r", **allocation) -> Run:
    """A run whose first iteration has its roots allocated."""
    size = {"pool": 12, "root_units": 10} | allocation
    run = new_run(params, data_dir, folder, run_id, allocation=size, engine={"shards": shards})
    prepare_data.fn(run.path)
    scored = score_prompts.fn(run.path, 0, policy=warm_up_policy.fn(run.path), predictor=None)
    allocate_roots.fn(run.path, 0, scored=scored)
    return run


def grow(run: Run, together: bool = False) -> Path:
    """The verified forest; the shards one after the other, or each in a thread, without Prefect."""
    path, policy, roots = run.path, warm_up_policy.fn(run.path), run.iteration(0) / "roots.parquet"

    def chain(shard) -> Path:
        generated = generate.fn(path, 0, policy=policy, roots=roots, shard=shard)
        factual = verify_factual.fn(path, 0, forest=generated, shard=shard)
        if not ARMS[run.params.allocation.arm].branches:
            return factual
        expanded = expand_prefixes.fn(path, 0, policy=policy, predictor=None, factual=factual, shard=shard)
        return verify_counterfactual.fn(path, 0, forest=expanded, shard=shard)

    shards = shards_of(run, 0)
    if len(shards) == 1:
        return chain(shards[0])
    with ThreadPoolExecutor(len(shards) if together else 1) as threads:
        return join_shards.fn(path, 0, verified=list(threads.map(chain, shards)))


def sampled(forest: Forest) -> list[dict]:
    """All of the nodes but what batches of other shapes round otherwise."""
    return [{k: v for k, v in vars(node).items() if k not in ("logprobs", "v_hat")} for node in forest.nodes]


@pytest.mark.parametrize(("arm", "more"), [*((arm, {}) for arm in LOCAL), ("trace", {"rounds": 2})])
def test_forest_does_not_depend_on_the_number_of_shards(params, data_dir, tmp_path, arm, more):
    whole, parted = (begin(params, data_dir, tmp_path, n, f"n{n}", arm=arm, **more) for n in (1, 4))
    one, four = read_forest(grow(whole)), read_forest(grow(parted))
    assert len(shards_of(parted, 0)) == min(4, int(one.is_root_N.sum()))
    assert sampled(one) == sampled(four)
    for a, b in zip(one.nodes, four.nodes, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4, nan_ok=True)
        assert (a.v_hat is None) == (b.v_hat is None)
        assert a.v_hat is None or a.v_hat == pytest.approx(b.v_hat, abs=1e-4)
    for stage in ("generate", "verify_factual", "expand_prefixes", "verify_counterfactual")[
        : 4 if ARMS[arm].branches else 2
    ]:
        ours, theirs = (read_stages(run.iteration(0))[stage]["metrics"] for run in (whole, parted))
        assert ours | {"cached_tokens": 0} == theirs | {"cached_tokens": 0}  # smaller batches share less


def test_more_shards_than_prompts_is_a_shard_for_each_prompt(params, data_dir, tmp_path):
    run = begin(params, data_dir, tmp_path, 500)
    forest = read_forest(grow(run))
    shards = shards_of(run, 0)
    assert len(shards) == forest.is_root_N.sum() > 2
    for index, count in shards:
        mine = read_forest(run.iteration(0) / "shards" / f"{index + 1:02d}-of-{count:02d}" / "verified.parquet")
        assert mine.is_root_N.sum() == 1


def test_threads_bring_the_same_bits_as_one_shard_after_the_other(params, data_dir, tmp_path, monkeypatch):
    """Each thread's cache must be its own: what is cached decides how a sum is rounded."""
    in_turn, together = (begin(params, data_dir, tmp_path, 3, name) for name in ("in-turn", "together"))
    expected = content_hash(grow(in_turn))
    meeting = threading.Barrier(3)

    class Mingled(MultiHop):  # holds each thread at its first turns until the others are there as well
        def step(self, state, action):
            if state.turn == 0:
                with suppress(threading.BrokenBarrierError):
                    meeting.wait(20)
            return super().step(state, action)

    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Mingled)
    original = expand_module.visited_anchors

    def expand(forest):
        meeting.abort()  # the shards have unequal numbers of rollouts
        return original(forest)

    monkeypatch.setattr(expand_module, "visited_anchors", expand)
    assert content_hash(grow(together, together=True)) == expected


def test_stage_two_of_a_prompt_begins_before_the_factual_rollouts_of_another_have_ended(
    params, data_dir, tmp_path, monkeypatch
):
    run = begin(params, data_dir, tmp_path, 3)
    begun, first = threading.Event(), threading.Lock()
    free: list[int] = []
    original = expand_module.visited_anchors

    class Slow(MultiHop):  # the tool answers only one thread, until stage 2 has begun somewhere
        def step(self, state, action):
            with first:
                free[:] = free or [threading.get_ident()]
            if threading.get_ident() not in free:
                assert begun.wait(60), "stage 2 waits for the factual rollouts of other prompts"
            return super().step(state, action)

    def expand(forest):
        begun.set()
        return original(forest)

    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Slow)
    monkeypatch.setattr(expand_module, "visited_anchors", expand)
    forest = read_forest(grow(run, together=True))
    assert all(node.status == "ok" for node in forest.nodes)
    entries = [read_stages(folder) for folder in (run.iteration(0) / "shards").iterdir()]
    assert min(e["expand_prefixes"]["began"] for e in entries) < max(
        e["generate"]["began"] + e["generate"]["seconds"] for e in entries
    )
    joined = read_stages(run.iteration(0))
    assert joined["join_shards"]["metrics"]["shards"] == 3
    assert joined["join_shards"]["metrics"]["overlapped_seconds"] > 0


@pytest.mark.parametrize("arm", [name for name, arm in ARMS.items() if not arm.is_local])
def test_arm_that_plans_over_the_whole_pool_has_one_shard_and_says_so(params, data_dir, tmp_path, arm, caplog):
    run = begin(params, data_dir, tmp_path, 4, arm=arm)
    assert shards_of(run, 0) == [(0, 1)]
    assert f"allocation.arm={arm} plans over the whole pool, so engine.shards=4 is one shard" in caplog.text


def test_number_of_shards_may_change_when_a_run_is_continued(params, data_dir, tmp_path):
    run = begin(params, data_dir, tmp_path, 1)
    one = sampled(read_forest(grow(run)))
    again = begin(params, data_dir, tmp_path, 2)
    assert again.path == run.path
    assert sampled(read_forest(grow(again))) == one


def test_finished_shards_are_kept_and_the_others_made_again(params, data_dir, tmp_path, caplog):
    run = begin(params, data_dir, tmp_path, 3)
    expected = content_hash(grow(run))
    folders = sorted((run.iteration(0) / "shards").iterdir())
    kept = {f.name: read_stages(f) for f in folders}
    (folders[1] / "expanded.parquet").unlink()
    (run.iteration(0) / "verified.parquet").unlink()
    assert content_hash(grow(run)) == expected
    for folder in folders:
        for name, entry in read_stages(folder).items():
            again = folder is folders[1] and name == "expand_prefixes"
            assert (entry["began"] == kept[folder.name][name]["began"]) != again


def test_run_that_is_ending_ends_its_stages_in_other_threads(params, data_dir, tmp_path):
    run = begin(params, data_dir, tmp_path, 2)
    stopping.set()
    try:
        with pytest.raises(Stopped):
            grow(run, together=True)
    finally:
        stopping.clear()


def test_shares_are_weighed_and_counts_are_added():
    from tasks.shards import _sum

    entries = [
        {"began": 0.0, "seconds": 4.0, "metrics": {"tokens": 10.0, "cached_share": 0.5}},
        {"began": 3.0, "seconds": 2.0, "metrics": {"tokens": 30.0, "cached_share": 0.9}},
        {"began": 9.0, "seconds": 1.0, "metrics": {"tokens": 0.0, "cached_share": 0.0}},
    ]
    total = _sum(entries)
    assert total["metrics"] == {"tokens": 40.0, "cached_share": pytest.approx(0.8)}
    assert total["seconds"] == 6.0  # the time during which any of them ran


@pytest.fixture
def two_trees() -> Callable[[], list[Node]]:
    def make() -> list[Node]:
        rows = [(0, -1), (1, -1), (0, 0), (1, 1), (0, 2), (1, 3)]  # tree, parent: as a stage appends
        origin = {-1: "root"}
        return [
            Node(tree, f"p{tree}", row, parent, 0, origin.get(parent, "factual"), anchor_id=parent, action=str(row))
            for row, (tree, parent) in enumerate(rows)
        ]

    return make


def test_canonical_order_and_join_keep_every_parent_and_anchor(two_trees):
    from components.tree.forest import join, tree_by_tree

    forest = tree_by_tree(two_trees())
    assert [n.action for n in forest.nodes] == ["0", "2", "4", "1", "3", "5"]
    assert [(n.parent_id, n.anchor_id) for n in forest.nodes] == [(-1, -1), (0, 0), (1, 1), (-1, -1), (3, 3), (4, 4)]
    assert forest.rank_N.tolist() == [0, 1, 2, 0, 1, 2]
    assert Forest(two_trees()).rank_N.tolist() == [0, 0, 1, 1, 2, 2]
    double = join([forest, tree_by_tree(two_trees())])
    assert double.tree_N.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert double.parent_N.tolist() == [-1, 0, 1, -1, 3, 4, -1, 6, 7, -1, 9, 10]
    assert len(join([])) == 0
