"""The tree viewer: an iteration's forest on one self-contained page, to read, filter and search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from components.allocation.prefixes import is_open
from components.allocation.utilities import prefix_utility, root_utility
from components.tracking.pages import page
from components.tree.anchors import SUCCESS, stored_belief, visited_anchors
from components.tree.forest import Forest
from components.tree.schema import Node


def forest_page(title: str, forest: Forest) -> str:
    """The page as HTML.

    Args:
        title: Its heading.
        forest: A finished forest, at any stage from the first verification on.
    """
    return page("viewer.html", title, trees(forest))


def most_informative(forest: Forest, count: int) -> list[dict[str, Any]]:
    """The trees with the highest surprise × contrast, as `trees` gives them; at most `count`."""
    return sorted(trees(forest), key=informative, reverse=True)[:count]


def informative(tree: dict[str, Any]) -> tuple[float, float]:
    """What trees are ordered by: surprise × contrast, and surprise where that is equal; 0 where it is not known."""
    surprise = tree.get("surprise", 0.0)
    return surprise * tree.get("contrast", 0.0), surprise


def trees(forest: Forest) -> list[dict[str, Any]]:
    """One object for each tree: its prompt, outcome counts, and its nodes with parents by index within the tree."""
    chance = granted_utility(forest)
    found = []
    for rows in forest.by_tree(np.arange(len(forest))):
        index = {row: i for i, row in enumerate(rows.tolist())}
        nodes = [forest.nodes[row] for row in index]
        rewards = [n.reward for n in nodes if n.is_terminal]
        wins, unscored = sum(r is not None and r > SUCCESS for r in rewards), rewards.count(None)
        losses = len(rewards) - wins - unscored
        found.append(
            {
                "prompt": nodes[0].prompt_id,
                "question": nodes[0].observation or "",
                "rule": nodes[0].rule or "",
                "wins": wins,
                "losses": losses,
                "unscored": unscored,
                **_lesson(nodes[0], wins, losses),
                "nodes": [_node(node, index, chance[node.node_id]) for node in nodes],
            }
        )
    return found


def granted_utility(forest: Forest) -> dict[int, float | None]:
    """For each node that was granted rollouts, the chance of contrast that they were granted for, else None.

    At a root E[V_root(m)] (Eq. 12), at a prefix E[V_pref(k)] given the outcomes of its factual rollouts (Eq. 15); a prefix
    whose factual rollouts disagree has its contrast.
    """
    anchors = visited_anchors(forest)
    chance: dict[int, float | None] = dict.fromkeys(range(len(forest)))
    outcomes = zip(
        anchors.node_A.tolist(),
        is_open(anchors),
        anchors.successes_A[:, None],
        anchors.failures_A[:, None],
        strict=True,
    )
    for row, is_open_here, successes, failures in outcomes:
        node = forest.nodes[row]
        if node.allocated and node.v_hat is not None:
            belief, count = stored_belief([node]), np.array([node.allocated])
            if node.parent_id < 0:
                chance[row] = float(root_utility(belief, count)[0])
            elif is_open_here:
                chance[row] = float(prefix_utility(belief.after(successes, failures), successes > 0, count)[0])
    return chance


def _lesson(root: Node, wins: int, losses: int) -> dict[str, float]:
    """Surprise |v̂ - V| and contrast 4 V (1 - V), V being the share of successes; empty where either is not known."""
    if root.v_hat is None or not wins + losses:
        return {}
    value = wins / (wins + losses)
    return {"surprise": round(abs(root.v_hat - value), 4), "contrast": round(4 * value * (1 - value), 4)}


def _node(node: Node, index: dict[int, int], chance: float | None) -> dict[str, Any]:
    thought, mark, action = (node.action or "").rpartition("</think>")
    shown = {
        "parent": index.get(node.parent_id, -1),
        "origin": str(node.origin),
        "thought": thought.replace("<think>", "").strip() if mark else "",
        "action": action.strip(),
        "observation": node.observation if node.parent_id >= 0 else None,
        "v": node.v_hat,
        "reward": node.reward,
        "stop": node.stop_reason,
        "status": None if node.status == "ok" else str(node.status),
        "granted": node.allocated or None,
        "chance": chance,
        "value": node.value,
        "advantage": node.advantage,
        "tokens": sum(node.is_action) or None,
    }
    return {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in shown.items()
        if not (value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)))
    }
