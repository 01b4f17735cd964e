"""The metrics of an iteration, what a run says when nothing was learnt, and where contrast is left."""

from __future__ import annotations

import re

import numpy as np
import pytest

from components.params.root import compose
from components.tracking.advice import nothing_learnt
from components.tracking.contrast import Contrast, believed_flips, contrast_by_turn, seen_flips
from components.tracking.names import iteration_metrics
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason


def chain(
    nodes: list[Node], *turns: list[int], reward: float, stop: str = StopReason.ANSWERED, sibling: int = 0
) -> None:
    """Appends a factual rollout of tree 0 with these sampled tokens, each with log p = -1/token."""
    parent = 0
    for turn, ids in enumerate(turns, start=1):
        tokens = {"token_ids": ids, "is_action": [True] * len(ids), "logprobs": [-1 / i for i in ids]}
        nodes.append(Node(0, "p", len(nodes), parent, turn, Origin.FACTUAL, 0, sibling, **tokens))
        parent = nodes[-1].node_id
    nodes[-1].stop_reason, nodes[-1].reward = stop, reward


@pytest.fixture
def forest() -> Forest:
    """Four rollouts of a prompt: three pass the same first turn, where two fail; the fourth is cut."""
    nodes = [Node(0, "p", 0, -1, 0, Origin.ROOT, allocated=4, v_hat=0.5)]
    chain(nodes, [1, 2], [4], reward=0.0)
    chain(nodes, [1, 2], [5], reward=0.0, sibling=1)
    chain(nodes, [1, 2], [4], reward=1.0, sibling=2)
    chain(nodes, [1] * 7, reward=0.0, stop=StopReason.LENGTH, sibling=3)
    return Forest(nodes)


def test_lengths_ends_entropy_and_speed_of_an_iteration(forest):
    stages = {
        "generate": {"seconds": 2.0, "metrics": {"tokens": 16.0, "rollouts": 4.0}},
        "verify_factual": {"seconds": 1.0, "metrics": {}},
        "update_policy": {"seconds": 5.0, "metrics": {"loss": float("nan")}},
    }
    line = iteration_metrics(0, forest, compose({"update": {"advantage": "grpo", "learning_rate": 0.1}}), stages, 10.0)
    expected = {
        "policy/entropy": (3 * (1 + 1 / 2) + 1 / 4 + 1 / 5 + 1 / 4 + 7) / 16,
        "policy/learning_rate": 0.1,
        "rollouts/tokens_mean": 4.0,
        "rollouts/tokens_p95": np.percentile([3, 3, 3, 7], 95),
        "rollouts/tokens_max": 7,
        "rollouts/turn_tokens_max": 7,
        "rollouts/turns_mean": 1.75,
        "rollouts/cut_share": 0.25,
        "rollouts/trained": 4.0,
        "stop/answered": 0.75,
        "stop/length": 0.25,
        "stop/max_turns": 0.0,
        "stop/malformed_action": 0.0,
        "stop/tool_error": 0.0,
        "tokens/per_s": 8.0,
        "time_share/rollouts": 0.25,
        "time_share/verification": 0.125,
        "time_share/predictor": 0.0,
        "time_share/update": 0.625,
        "time_share/evaluation": 0.0,
        "policy/loss": None,
        "metrics/not_finite": 3,  # both flip rates, and the loss
    }
    assert {key: line[key] for key in expected} == {
        key: value if value is None else pytest.approx(value) for key, value in expected.items()
    }


def test_an_iteration_without_a_rollout_has_metrics():
    line = iteration_metrics(0, Forest([]), compose({}), {}, 1.0)
    assert line["rollouts/tokens_mean"] is line["policy/entropy"] is line["stop/answered"] is None
    assert line["rollouts/tokens_max"] == 0


def dead(sampled: int = 16, groups: int = 3, **shares: float) -> dict:
    line = {"rollouts/trained": 0.0, "rollouts/sampled": float(sampled), "policy/groups/total": float(groups)}
    named = {"all_fail": "policy/groups/all_fail_frac", "all_pass": "policy/groups/all_pass_frac"}
    return line | {named.get(key, f"stop/{key}"): value for key, value in shares.items()}


LONG = {"rollouts/turn_tokens_max": 24}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (dead(all_fail=1.0, length=1.0) | LONG, "all fail, 16 of 16 rollouts cut at 24 tokens: raise engine.max_turn"),
        (dead(all_fail=1.0, length=0.75), "12 of 16 rollouts cut at 128 tokens, prompt and observations incl"),
        (dead(all_fail=2 / 3, all_pass=1 / 3), "2 of 3 groups all fail: take easier prompts"),
        (dead(all_pass=1.0, length=1.0), "3 of 3 groups all succeed: take harder prompts"),
        (dead(all_fail=1.0, max_turns=0.5), "8 of 16 rollouts stopped after 6 turns: raise environment.max_turns"),
        (dead(all_fail=1.0, malformed_action=1.0), "16 of 16 rollouts ended in an action that cannot be read: teach"),
        ({"rollouts/trained": 0.0}, "nothing was learnt: no group has contrast"),
    ],
)  # fmt: skip
def test_an_iteration_in_which_nothing_was_learnt_says_why_and_what_to_change(line, said):
    assert said in nothing_learnt([line], compose({}))


def test_a_run_sums_up_the_iterations_in_which_nothing_was_learnt():
    live = {"rollouts/trained": 4.0}
    assert nothing_learnt([live], compose({})) is None
    assert nothing_learnt([dead(all_fail=1.0), live, dead(all_fail=1.0)], compose({})).startswith(
        "nothing was learnt in 2 of 3 iterations: 6 of 6 groups all fail"
    )


def test_contrast_by_turn_compares_rollouts_of_equal_histories(forest):
    passing, compared, contrast = contrast_by_turn(forest).T
    assert passing.tolist() == [4, 3, 0]  # the cut one passed the prompt alone
    assert compared.tolist() == [4, 3, 0]
    np.testing.assert_allclose(contrast, [4 * 1 * 3 / (4 * 3), 3 * 1 * 2 / (3 * 2), 0])


def trees(*trees: tuple[list[int], list[int]]) -> Forest:
    """A tree for each pair: rewards of factual rollouts, of which the first has a prefix, and of its continuations."""
    nodes: list[Node] = []
    for tree, (factual, continued) in enumerate(trees):
        root = len(nodes)
        belief = {"v_hat": 0.5, "concentration": 2.0}
        nodes.append(Node(tree, f"p{tree}", root, -1, 0, Origin.ROOT, allocated=len(factual), **belief))
        nodes.append(Node(tree, f"p{tree}", root + 1, root, 1, Origin.FACTUAL, root, 0, v_hat=0.2))
        for k, reward in enumerate(factual + continued):
            counterfactual = k >= len(factual)
            anchor, parent = root + counterfactual, root + (k == 0 or counterfactual)
            origin = Origin.COUNTERFACTUAL if counterfactual else Origin.FACTUAL
            leaf = Node(tree, f"p{tree}", len(nodes), parent, 2, origin, anchor, k, stop_reason=StopReason.ANSWERED)
            leaf.reward = float(reward)
            nodes.append(leaf)
    return Forest(nodes)


def test_what_one_more_rollout_brings_as_believed_and_as_seen():
    forest = trees(([0, 0, 0], [1, 0]), ([1, 0], [1]), ([1, 1, 0], []), ([1], []))
    np.testing.assert_allclose(believed_flips(forest), [[1 / 5, 0.2], [1 / 3, 0.8]])  # after 3 failures, 1 success
    at_root, at_prefixes = seen_flips(forest)
    np.testing.assert_allclose(at_root, [1 + 1 + 1 / 3, 1 + 1 / 3])  # met a tree without contrast, and brought it
    np.testing.assert_allclose(at_prefixes, [2, 1])


@pytest.mark.parametrize(
    ("believed", "seen", "said"),
    [
        ([], [[0, 0], [0, 0]], "is not known"),
        ([[0.3, 0.1]], [[9, 9], [9, 0]], "cannot pay .* 0.300 for 1 unit, .* 0.100 for ½, as the predictor"),
        ([[0.1, 0.3]], [[500, 50], [400, 100]], "can pay .* as seen over 400 continuations"),
        ([[0.1, 0.3]], [[500, 100], [400, 10]], "cannot pay"),
        ([[0.1, 0.3]], [[50, 10], [40, 4]], "neither gains nor loses more than the noise"),
    ],
)  # fmt: skip
def test_one_line_says_whether_stage_2_can_pay(believed, seen, said):
    contrast = Contrast(np.zeros((0, 3)), np.array(believed).reshape(-1, 2), np.array(seen, dtype=float))
    assert re.search(said, Contrast.total([contrast]).can_stage_2_pay())
