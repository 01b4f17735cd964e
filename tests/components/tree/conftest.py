"""Small forests from nested lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(scope="session")
def plant() -> Callable[..., Forest]:
    """Grows one tree per argument: a list is an inner node, a number a scored leaf, None a leaf that failed.

    `plant([1, 0, [1, 0, 0]])` has three rollouts from the root; the third one's prefix has two continuations beside its
    factual leaf. Every node but the root has `actions` sampled tokens, and one observation token unless it is a leaf.
    A leaf may also be a pair (reward, number of sampled tokens).
    """

    def grow(*trees: list[Any], actions: int = 2) -> Forest:
        nodes: list[Node] = []

        def add(spec: Any, tree: int, parent: int, turn: int, origin: str, anchor: int, sibling: int) -> None:
            row, inner = len(nodes), isinstance(spec, list)
            reward, sampled = spec if isinstance(spec, tuple) else (spec, actions)
            sampled = 0 if parent < 0 else sampled
            seen = 3 if parent < 0 else int(inner)
            node = Node(tree, f"p{tree}", row, parent, turn, origin, anchor, sibling)
            node.token_ids = [100 * row + i for i in range(sampled + seen)]
            node.is_action = [True] * sampled + [False] * seen
            node.logprobs = [-1.0] * sampled + [float("nan")] * seen
            if not inner:
                node.stop_reason = StopReason.ANSWERED
                node.status = Status.OK if reward is not None else Status.ERROR
                node.reward = None if reward is None else float(reward)
            nodes.append(node)
            for index, child in enumerate(spec if inner else []):
                if parent < 0:
                    add(child, tree, row, turn + 1, Origin.FACTUAL, row, index)
                elif index == 0:
                    add(child, tree, row, turn + 1, origin, anchor, sibling)
                else:
                    add(child, tree, row, turn + 1, Origin.COUNTERFACTUAL, row, index - 1)

        for tree, spec in enumerate(trees):
            add(spec, tree, -1, 0, Origin.ROOT, -1, -1)
        return Forest(nodes)

    return grow
