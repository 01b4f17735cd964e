"""Arms in a run: where their budget goes, stage by stage."""

from __future__ import annotations

import pytest

from components.allocation.arms import ARMS
from components.storage import content_hash, read_parquet
from tasks.prepare import warm_up_policy
from tasks.stage import read_stages
from tests.tasks.pipeline import forests, new_run, train


def test_budget_where_nothing_succeeds_is_spent_once_and_the_run_goes_on(params, data_dir, tmp_path, random_policy):
    """Peers that refill until a group is mixed abort or loop forever here."""
    run = new_run(params, data_dir, tmp_path, policy={"path": str(random_policy)})
    train(run)
    for line in run.metrics():
        assert line["effective_ratio/prompts"] == 0
        assert line["budget/units"] <= params.allocation.budget.units
        assert line["policy/optimizer_steps"] == 0
    weights = {content_hash(run.iteration(k) / "policy" / "model.safetensors") for k in (0, 1)}
    assert weights == {content_hash(random_policy / "model.safetensors")}


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm not in ("trace", "react", "trace-unified-tokens")])
def test_every_arm_runs_through_the_same_stages_at_the_same_units(params, data_dir, tmp_path, arm):
    run = new_run(params, data_dir, tmp_path, allocation={"arm": arm}, run={"iterations": 1})
    train(run)
    line = run.metrics()[0]
    least = 0.2 if "filter" in arm else 0.75 if arm in ("reinforce-ada", "knapsack", "vip", "mopps") else 0.9
    assert least * params.allocation.budget.units <= line["budget/units"] <= params.allocation.budget.units
    assert line["budget/unspent"] == pytest.approx(params.allocation.budget.units - line["budget/units"])


def test_react_spends_nothing_and_keeps_the_policy(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path, allocation={"arm": "react"}, run={"iterations": 1})
    train(run)
    line = run.metrics()[0]
    assert (line["budget/units"], line["budget/leaves"], line["budget/active_prompts"]) == (0, 0, 0)
    assert line["effective_ratio/prompts"] is None
    weights = [p / "model.safetensors" for p in (warm_up_policy.fn(run.path), run.iteration(0) / "policy")]
    assert content_hash(weights[0]) == content_hash(weights[1])


def test_later_rounds_know_the_outcomes_of_earlier_ones(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path, allocation={"rounds": 2, "root_units": 48}, run={"iterations": 1})
    train(run)
    line, forest = run.metrics()[0], forests(run)[0]
    assert 0.9 * run.params.allocation.budget.units <= line["budget/units"] <= run.params.allocation.budget.units
    factual = {n.tree_id: n.allocated for n in forest.nodes if n.parent_id < 0}
    continued: dict[int, list[int]] = {}  # of each tree, in the order of sampling: m_i in each round
    for leaf in forest.leaves_L[forest.is_counterfactual_N[forest.leaves_L]].tolist():
        continued.setdefault(forest.nodes[leaf].tree_id, []).append(leaf)
    flipped, later = set(), set()
    for tree, leaves in continued.items():
        for leaf in leaves[: factual[tree]]:
            anchor = forest.nodes[leaf].anchor_id
            first = next(x for x in forest.leaves_L.tolist() if anchor in forest.path(x))
            flipped |= {anchor} if forest.reward_N[leaf] != forest.reward_N[first] else set()
        later |= {forest.nodes[leaf].anchor_id for leaf in leaves[factual[tree] :]}
    assert flipped
    assert later
    assert not flipped & later
    for anchor in {forest.nodes[leaf].anchor_id for leaves in continued.values() for leaf in leaves}:
        siblings = [forest.nodes[x].sibling for x in forest.leaves_L.tolist() if forest.nodes[x].anchor_id == anchor]
        assert sorted(siblings) == list(range(forest.nodes[anchor].allocated))


def test_c20_dead_groups_are_refilled_within_the_budget(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path, allocation={"arm": "grpo-filter"}, run={"iterations": 1})
    train(run)
    line, stages_ = run.metrics()[0], read_stages(run.iteration(0))
    first = stages_["allocate_roots"]["metrics"]["active_prompts"]
    refill = stages_["refill_roots"]["metrics"]
    assert refill["rounds"] >= 1
    assert line["budget/active_prompts"] == first + refill["rollouts"] / params.allocation.group_size
    assert line["budget/factual_rollouts"] == line["budget/leaves"] <= params.allocation.budget.units
    forest = forests(run)[0]
    assert len(set(n.prompt_id for n in forest.nodes if n.parent_id < 0)) == line["budget/active_prompts"]


def test_pool_depends_on_seed_and_iteration_alone(params, data_dir, tmp_path, finished):
    pools = [read_parquet(finished.iteration(k) / "scored.parquet")["prompt_id"].to_pylist() for k in (0, 1)]
    assert pools[0] != pools[1]
    assert len(set(pools[0])) == params.allocation.pool
    other = new_run(params, data_dir, tmp_path, run={"seed": 1, "iterations": 1})
    train(other)
    assert read_parquet(other.iteration(0) / "scored.parquet")["prompt_id"].to_pylist() != pools[0]
