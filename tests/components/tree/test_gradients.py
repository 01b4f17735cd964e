"""Do the advantages point where the policy gradient points? A two-turn task, small enough to enumerate.

A softmax policy picks one of three actions in each of two turns; success has a fixed chance for each pair of actions.
The estimate of the gradient is what the loss of `components.tree.advantages` gives at ratio 1: the sum over terms of
weight * tokens * advantage * grad log pi.
"""

from __future__ import annotations

import numpy as np
import pytest

from components.allocation.anchors import Belief
from components.allocation.prefixes import plan_prefixes
from components.tree.advantages import ADVANTAGES, terms_of
from components.tree.anchors import visited_anchors
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason
from components.tree.terms import Terms

SUCCESS = np.array([[0.9, 0.2, 0.1], [0.1, 0.5, 0.3], [0.05, 0.1, 0.6]])
LOGITS = np.array([0.3, -0.2, 0.1]), np.array([[0.0, 0.5, 0.2], [0.4, 0.0, -0.3], [0.2, 0.1, -0.5]])


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


FIRST, SECOND = softmax(LOGITS[0]), softmax(LOGITS[1])
PREFIX_VALUE = (SECOND * SUCCESS).sum(axis=1)


def exact_gradient() -> np.ndarray:
    """Of the success rate in the twelve logits; rows: first turn, then the second turn after each first action."""
    value = FIRST @ PREFIX_VALUE
    second = FIRST[:, None] * SECOND * (SUCCESS - PREFIX_VALUE[:, None])
    return np.vstack([FIRST * (PREFIX_VALUE - value), second])


def rollout(rng: np.random.Generator, nodes: list[Node], tree: int, anchor: int, first: int | None) -> None:
    """Adds a factual rollout (first is None), or a continuation after the first action."""
    origin, parent = Origin.FACTUAL if first is None else Origin.COUNTERFACTUAL, anchor
    if first is None:
        first = int(rng.choice(3, p=FIRST))
        nodes.append(Node(tree, "p", len(nodes), parent, 1, origin, anchor, 0, [first], [True], [0.0]))
        parent = len(nodes) - 1
    second = int(rng.choice(3, p=SECOND[first]))
    leaf = Node(tree, "p", len(nodes), parent, 2, origin, anchor, 0, [second], [True], [0.0])
    leaf.stop_reason, leaf.reward = StopReason.ANSWERED, float(rng.random() < SUCCESS[first, second])
    nodes.append(leaf)


def sample(rng: np.random.Generator, trees: int, rollouts: int, expansion: str) -> Forest:
    nodes: list[Node] = []
    for tree in range(trees):
        root = len(nodes)
        nodes.append(Node(tree, "p", root, -1, 0, Origin.ROOT))
        for _ in range(rollouts):
            rollout(rng, nodes, tree, root, None)
    if expansion == "none":
        return Forest(nodes)
    factual = Forest(list(nodes))
    anchors = visited_anchors(factual)
    rows = zip(anchors.node_A, anchors.turn_A, strict=True)
    value_A = np.array([PREFIX_VALUE[nodes[row].token_ids[0]] if turn else 0.5 for row, turn in rows])
    counts = plan_prefixes(anchors.with_belief(Belief.point(value_A)), np.full(trees, 2 * rollouts), rng)
    for row, count in zip(anchors.node_A.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            rollout(rng, nodes, nodes[row].tree_id, row, nodes[row].token_ids[0])
    return Forest(nodes)


def estimate(forest: Forest, terms: Terms) -> np.ndarray:
    gradient = np.zeros((4, 3))
    for node_id, advantage, weight in zip(terms.node_K.tolist(), terms.advantage_K, terms.weight_K, strict=True):
        node = forest.nodes[node_id]
        state = 0 if node.turn == 1 else 1 + forest.nodes[node.parent_id].token_ids[0]
        policy = FIRST if state == 0 else SECOND[state - 1]
        score = -policy.copy()
        score[node.token_ids[0]] += 1.0
        gradient[state] += weight * advantage * score
    return gradient


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


@pytest.mark.parametrize("expansion", ["none", "by outcome"])
def test_gradient_points_along_the_exact_one(expansion):
    rng = np.random.default_rng(3)
    forests = [sample(rng, trees=400, rollouts=4, expansion=expansion) for _ in range(4)]
    exact = exact_gradient()
    for kind in ADVANTAGES:
        mean = np.mean([estimate(forest, terms_of(forest, kind)) for forest in forests], axis=0)
        assert cosine(mean, exact) > 0.9, kind
        for state in range(4):
            assert cosine(mean[state], exact[state]) > 0.97, (kind, state)


def test_leave_one_out_has_the_exact_gradient_for_its_mean():
    rng = np.random.default_rng(4)
    gradients = []
    for _ in range(6):
        forest = sample(rng, trees=500, rollouts=2, expansion="none")
        terms = terms_of(forest, "rloo")
        kept = len(set(terms.leaf_K.tolist())) / len(forest.leaves_L)  # groups without contrast add nothing to the sum
        gradients.append(2 * kept * estimate(forest, terms))  # two tokens per leaf: a token mean is half the gradient
    error = np.abs(np.mean(gradients, axis=0) - exact_gradient())
    assert (error < 4 * np.std(gradients, axis=0) / np.sqrt(len(gradients)) + 0.004).all()


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_c15_baseline_gives_no_bonus_to_going_on(kind):
    """Stopping and going on succeed equally often, so that on average nothing pulls towards either."""
    rng = np.random.default_rng(5)
    pulls = []
    for _ in range(10):
        nodes: list[Node] = []
        for tree in range(150):
            root = len(nodes)
            nodes.append(Node(tree, "p", root, -1, 0, Origin.ROOT))
            for _ in range(4):
                going_on, parent = rng.random() < 0.5, root
                for turn in range(1, 3 if going_on else 2):
                    sampled = [int(going_on)], [True], [0.0]
                    nodes.append(Node(tree, "p", len(nodes), parent, turn, Origin.FACTUAL, root, 0, *sampled))
                    parent = len(nodes) - 1
                nodes[-1].stop_reason, nodes[-1].reward = StopReason.ANSWERED, float(rng.random() < 0.4)
        forest = Forest(nodes)
        terms = terms_of(forest, kind)
        first = forest.turn_N[terms.node_K] == 1
        on = np.array([forest.nodes[row].token_ids[0] for row in terms.node_K]) - 0.5
        pulls.append(float((terms.weight_K * terms.advantage_K * on)[first].sum()))
    assert abs(np.mean(pulls)) < 4 * np.std(pulls) / np.sqrt(len(pulls))
