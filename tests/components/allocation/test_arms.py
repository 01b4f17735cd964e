"""Every arm: never over the budget, deterministic, and where it sends rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.allocation.anchors import Anchors, Belief, Seen
from components.allocation.arm import Arm, root_rounds
from components.allocation.arms import ARMS
from components.allocation.arms.trace_unified import TraceUnified
from components.allocation.budget import Budget, cost_of
from tests.components.allocation.conftest import anchors_of

BUDGETS = st.builds(
    Budget,
    root_units=st.integers(2, 60),
    continuations=st.integers(0, 5),
    group_size=st.integers(2, 9),
    max_per_prompt=st.sampled_from([None, 2, 3, 8]),
)


@dataclass
class Spent:
    """What an arm did: factual rollouts, the anchors they left, further rollouts, rounds of stage 1."""

    factual_P: np.ndarray
    anchors: Anchors
    further_A: np.ndarray
    rounds: int

    @property
    def units(self) -> float:
        return float(self.factual_P.sum() + cost_of(self.anchors.is_prefix_A) @ self.further_A)


def iterate(arm: Arm, pool: Belief, rates: np.ndarray, budget: Budget, rng: np.random.Generator, grow) -> Spent:
    """Both stages of one iteration, with outcomes drawn at `rates`."""
    seen = Seen.nothing(len(pool))

    def sample(counts_P: np.ndarray) -> Seen:
        nonlocal seen
        assert (counts_P.dtype, counts_P.shape) == (np.int64, (len(pool),))
        assert (counts_P >= 0).all()
        won_P = rng.binomial(counts_P, rates)
        lost_P = rng.binomial(counts_P - won_P, 0.9)  # some cannot be scored
        seen = Seen(seen.sampled_P + counts_P, seen.successes_P + won_P, seen.failures_P + lost_P)
        return seen

    rounds = root_rounds(arm, pool, budget, rng, sample)
    factual_S = seen.sampled_P[seen.sampled_P > 0]
    anchors = grow(factual_S, rng)
    further_A = arm.plan_continuations(anchors, factual_S, budget, rng)
    assert (further_A.dtype, further_A.shape) == (np.int64, (len(anchors),))
    assert (further_A >= 0).all()
    return Spent(seen.sampled_P, anchors, further_A, rounds)


IN_UNITS = [name for name in ARMS if name != "trace-unified-tokens"]


@pytest.mark.parametrize("name", IN_UNITS)
@settings(max_examples=60, deadline=None)
@given(budget=BUDGETS, size=st.integers(0, 70), sharp=st.booleans(), seed=st.integers(0, 10_000))
def test_no_arm_exceeds_the_budget(grow_anchors, name, budget, size, sharp, seed):
    rng = np.random.default_rng(seed)
    rates = rng.beta(0.4, 0.4, size)
    pool = Belief(rates, np.full(size, np.inf if sharp else 3.0))
    spent = iterate(ARMS[name](), pool, rates, budget, rng, grow_anchors)
    assert spent.units <= budget.units


@pytest.mark.parametrize("name", ARMS)
def test_c27_same_generator_gives_the_same_table_and_the_global_one_is_untouched(grow_anchors, name):
    rates = np.random.default_rng(1).beta(0.4, 0.4, 64)
    pool = Belief(rates, np.full(64, 5.0))
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    one, two = (
        iterate(ARMS[name](), pool, rates, Budget(64, 2), np.random.default_rng(3), grow_anchors) for _ in range(2)
    )
    assert (one.factual_P == two.factual_P).all()
    assert (one.further_A == two.further_A).all()
    assert (np.random.get_state()[1] == before).all()


def spend(name, rates, budget, grow, seed=0, concentration=np.inf):
    pool = Belief(rates, np.full(len(rates), concentration))
    return iterate(ARMS[name](), pool, rates, budget, np.random.default_rng(seed), grow)


def continuations(arm, anchors, factual_S, budget):
    return arm.plan_continuations(anchors, np.array(factual_S), budget, np.random.default_rng(0))


@pytest.mark.parametrize("name", [arm for arm in IN_UNITS if ARMS[arm].samples and not ARMS[arm].refills])
def test_arms_spend_nearly_everything_when_the_pool_is_large(grow_anchors, name):
    spent = spend(name, np.random.default_rng(0).random(400), Budget(128, 2), grow_anchors)
    assert spent.units > 0.97 * Budget(128, 2).units


def test_trace_skips_certain_prompts_and_grpo_does_not(grow_anchors):
    rates = np.repeat([0.0, 0.5, 1.0], 100)
    assert spend("trace", rates, Budget(90, 2), grow_anchors).factual_P[rates != 0.5].sum() == 0
    assert spend("grpo", rates, Budget(90, 2), grow_anchors).factual_P[rates != 0.5].sum() > 0


def test_flat_arms_take_whole_groups_of_the_whole_budget(grow_anchors):
    for name in ("grpo", "pcl", "mopps"):
        factual = spend(name, np.random.default_rng(0).random(300), Budget(128, 2, 8), grow_anchors).factual_P
        assert (factual[factual > 0] == 8).all()
        assert (factual > 0).sum() == 32


def test_treepo_matches_the_units_of_flat_groups(grow_anchors):
    spent = spend("treepo", np.full(300, 0.5), Budget(128, 2, 8), grow_anchors)
    assert (spent.factual_P[spent.factual_P > 0] == 4).all()
    assert (spent.factual_P > 0).sum() == 32
    per_tree = np.bincount(spent.anchors.tree_A, weights=spent.further_A)
    assert set(per_tree.tolist()) <= {8, 4}  # two continuations per factual rollout, or their price in factual rollouts


def test_pcl_takes_the_prompts_nearest_a_half(grow_anchors):
    rates = np.linspace(0, 1, 101)
    chosen = rates[spend("pcl", rates, Budget(20, 2, 8), grow_anchors).factual_P > 0]
    assert sorted(chosen.tolist()) == pytest.approx([0.48, 0.49, 0.5, 0.51, 0.52])


def test_mopps_explores_what_it_does_not_know_and_is_pcl_when_it_does(grow_anchors):
    rates = np.concatenate([np.full(20, 0.5), np.full(80, 0.1)])
    known = spend("mopps", rates, Budget(40, 2, 8), grow_anchors, concentration=1e9).factual_P
    assert known[20:].sum() == 0
    unknown = spend("mopps", rates, Budget(40, 2, 8), grow_anchors, concentration=1.0).factual_P
    assert unknown[20:].sum() > 0


def test_knapsack_favours_hard_prompts_over_equally_uncertain_easy_ones(grow_anchors):
    rates = np.repeat([0.2, 0.8], 16)
    factual = spend("knapsack", rates, Budget(128, 2, 8), grow_anchors).factual_P
    assert factual[:16].sum() > factual[16:].sum()


def test_vip_gives_every_prompt_of_its_batch_two_and_the_uncertain_ones_more(grow_anchors):
    rates = np.repeat([0.5, 0.02], 8)
    factual = spend("vip", rates, Budget(64, 2, 8), grow_anchors).factual_P
    assert factual.min() >= 2
    assert factual[:8].min() > factual[8:].max()


def test_entropy_tree_branches_where_the_policy_hesitates():
    anchors = anchors_of([0, 1, 2, 3], [1] * 4, [0] * 4, [0.5] * 4, surprisal=[9.0, 0.2, 0.5, 0.1])
    assert continuations(ARMS["entropy-tree"](), anchors, [2], Budget(2, 2)).tolist() == [0, 1, 2, 1]


def test_random_branch_points_are_uniform_over_the_turns_of_all_rollouts():
    # the first prefix is shared by three rollouts, the second belongs to one
    anchors = anchors_of([0, 1, 2], [2, 2, 1], [1, 1, 0], [0.5] * 3)
    counts = continuations(ARMS["treepo"](), anchors, [4000], Budget(2, 2))
    assert counts.tolist() == pytest.approx([0, 6000, 2000], abs=200)


def test_c19_dynamic_sampling_ends_when_nothing_is_ever_mixed(grow_anchors):
    spent = spend("grpo-filter", np.zeros(50), Budget(8, 2, 4), grow_anchors)
    assert spent.factual_P.sum() == 16
    assert spent.rounds == 2


def test_filter_stops_when_its_aim_is_reached_and_leaves_the_rest_unspent(grow_anchors):
    mixed = np.full(400, 0.5)
    spent = spend("grpo-filter", mixed, Budget(128, 2, 8), grow_anchors)
    assert 128 <= spent.factual_P.sum() < 170  # 16 of 32 groups, and a few for those that were dead
    spent = spend("grpo-filter", np.repeat([0.0, 0.5], 200), Budget(128, 2, 8), grow_anchors)
    assert spent.factual_P.sum() > 200


def test_reinforce_ada_goes_on_with_unbalanced_prompts_only(grow_anchors):
    rates = np.repeat([0.5, 0.0], 16)
    spent = spend("reinforce-ada", rates, Budget(128, 2, 8), grow_anchors)
    assert spent.factual_P[16:].mean() > spent.factual_P[:16].mean()
    assert spent.rounds > 1


def test_c23_no_band_of_rates_can_empty_the_batch(grow_anchors):
    far = np.repeat([0.02, 0.97], 4)  # nothing near 0.5
    for name in ("pcl", "mopps", "trace", "pcl-filter"):
        assert spend(name, far, Budget(8, 2, 4), grow_anchors).factual_P.sum() >= 8, name


def test_c30_the_cross_of_predictor_and_filter_is_registered():
    cells = {name: (ARMS[name].uses_predictor) for name in ("grpo", "grpo-filter", "pcl", "pcl-filter")}
    assert cells == {"grpo": False, "grpo-filter": False, "pcl": True, "pcl-filter": True}


def test_untrained_predictor_allocates_like_uniform(grow_anchors):
    """Ignorance everywhere: prompts are drawn at random, three rollouts each, and mixed as often as such groups are."""
    rates = np.random.default_rng(0).beta(0.3, 0.3, 2000)
    rng = np.random.default_rng(1)
    mixed = []
    for _ in range(40):
        counts = ARMS["trace"]().plan_roots(Belief.ignorant(2000), Seen.nothing(2000), Budget(300, 2), rng)
        successes = rng.binomial(counts, rates)
        mixed.append(((successes > 0) & (successes < counts)).sum())
    expected = 100 * np.mean(1 - rates**3 - (1 - rates) ** 3)
    assert np.mean(mixed) == pytest.approx(expected, rel=0.1)


def test_budget_counts_its_units_and_parts_its_continuations():
    assert Budget(1024, 2).units == Budget(512, 6).units == 2048
    assert [part.continuations for part in Budget(8, 5, 4).parts(3)] == [1, 2, 2]
    assert Budget(8, 5, 4).parts(1) == [Budget(8, 5, 4)]


class InUnits(TraceUnified):
    per = "units"


def test_unified_queue_takes_the_largest_gain_per_price():
    # one tree of four factual rollouts, all failed; a root at V = 0.5 and a prefix at V = 0.4 that costs a half
    anchors = anchors_of([0, 1], [0, 0], [4, 4], [0.5, 0.4])
    # gains per unit: prefix .8, .48, .288, .17; root .5: two prefix units, then the root for the last unit
    assert continuations(InUnits(), anchors, [4], Budget(4, 1)).tolist() == [1, 2]


def test_unified_queue_prefers_short_suffixes_per_token():
    anchors = anchors_of([0, 1, 2], [0, 0, 0], [4, 4, 4], [0.01, 0.4, 0.4], tokens=[100, 80, 10])
    counts = continuations(ARMS["trace-unified"](), anchors, [4], Budget(4, 1))
    assert counts[2] > counts[1]


def test_unified_queue_crosses_trees():
    anchors = anchors_of([0, 1, 0, 1], [0] * 4, [2] * 4, [0.0, 0.5, 0.0, 0.001], tree=[0, 0, 1, 1])
    counts = continuations(InUnits(), anchors, [2, 2], Budget(4, 2))
    assert counts.sum() == 8
    assert counts[1] > 4  # `trace` would give each tree its own four


def test_unified_queue_in_tokens_keeps_to_tokens_not_to_units():
    """Continuations of a tenth of a rollout: the two units that are left pay for twenty of them instead of four."""
    anchors = anchors_of([0, 1, 2], [0, 0, 0], [4, 4, 4], [0.0, 0.9, 0.9], tokens=[100, 10, 10])
    in_units, in_tokens = (
        continuations(ARMS[name](), anchors, [4], Budget(4, 1)) for name in ("trace-unified", "trace-unified-tokens")
    )
    assert in_units.sum() == 4
    assert in_tokens.sum() == 20
    assert in_tokens @ anchors.suffix_tokens_A <= 2 * 100


def test_unified_queue_leaves_anchors_of_unknown_length_to_the_end():
    anchors = anchors_of([0, 1, 2], [0, 0, 0], [4, 4, 4], [0.0, 0.9, 0.2], tokens=[100, np.nan, 10])
    assert continuations(ARMS["trace-unified"](), anchors, [4], Budget(4, 1))[1] == 0
