"""The tree viewer: an iteration's forest on one self-contained page, to read, filter and search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from components.allocation.anchors import Belief
from components.allocation.utilities import prefix_utility, root_utility
from components.tracking.pages import page
from components.tree.anchors import SUCCESS, stored_belief
from components.tree.forest import Forest
from components.tree.metrics import flips, planned_outcomes
from components.tree.schema import Node
from components.tree.values import own_rollouts

TOKENS = 200_000  # tokens of a page that are stored as text: about 4 MB

Decode = Callable[[list[int]], str]


def forest_page(
    title: str,
    forest: Forest,
    gold: Mapping[str, str] | None = None,
    decode: Decode | None = None,
    others: Sequence[tuple[int, str]] = (),
) -> str:
    """The page as HTML.

    Args:
        title: Its heading.
        forest: A finished forest, at any stage from the first verification on.
        gold: Gold answers by prompt id, where they are known.
        decode: Text of token ids; with it, tokens and the exact prompt can be read as well.
        others: Numbers and addresses of the pages of other iterations.
    """
    found = trees(forest, gold)
    head = _add_tokens(forest, found, decode) if decode else ""
    return page("viewer.html", title, {"trees": found, "head": head}, others=others)


def informative(tree: dict[str, Any]) -> tuple[float, float]:
    """What trees are ordered by: surprise × contrast, and surprise where that is equal; 0 where it is not known."""
    surprise = tree.get("surprise", 0.0)
    return surprise * tree.get("contrast", 0.0), surprise


def trees(forest: Forest, gold: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """One object for each tree: its prompt, outcome counts, and its nodes with parents by index within the tree."""
    facts = _facts(forest)
    found = []
    for rows in forest.by_tree(np.arange(len(forest))):
        index = {row: i for i, row in enumerate(rows.tolist())}
        root, nodes = forest.nodes[rows[0]], [_node(forest.nodes[row], index, facts[row]) for row in index]
        rewards = [n.reward for n in (forest.nodes[row] for row in index) if n.is_terminal]
        wins, unscored = sum(r is not None and r > SUCCESS for r in rewards), rewards.count(None)
        losses = len(rewards) - wins - unscored
        found.append(
            {
                "prompt": root.prompt_id,
                "question": root.observation or "",
                "gold": (gold or {}).get(root.prompt_id, ""),
                "rule": root.rule or "",
                "wins": wins,
                "losses": losses,
                "unscored": unscored,
                "flips": sum(n.get("flips", [0])[0] for n in nodes),
                **_lesson(root, wins, losses),
                "nodes": nodes,
            }
        )
    return found


def granted_utility(forest: Forest) -> dict[int, float]:
    """For nodes that were granted rollouts, the chance of contrast that they were granted for.

    At a root E[V_root(m)] (Eq. 12), at a prefix E[V_pref(k)] given the outcomes of its factual rollouts (Eq. 15); a
    prefix whose factual rollouts disagree has its contrast, and no chance here.
    """
    _, successes_N, failures_N = planned_outcomes(forest)
    chance: dict[int, float] = {}
    for row, node in enumerate(forest.nodes):
        if node.allocated and node.v_hat is not None:
            belief, count = stored_belief([node]), np.array([node.allocated])
            wins, losses = successes_N[[row]], failures_N[[row]]
            if node.parent_id < 0:
                chance[row] = float(root_utility(belief, count)[0])
            elif bool(wins[0]) != bool(losses[0]):
                chance[row] = float(prefix_utility(belief.after(wins, losses), wins > 0, count)[0])
    return chance


def _facts(forest: Forest) -> list[dict[str, Any]]:
    """What the forest as a whole says of each node: beliefs, flips, and which earlier node has the same history."""
    first_N, _, _ = planned_outcomes(forest)
    sum_N, count_N = own_rollouts(forest)
    wins_N, all_N = (np.bincount(first_N, weights=values, minlength=len(forest)) for values in (sum_N, count_N))
    facts: list[dict[str, Any]] = []
    for row, first in enumerate(first_N.tolist()):
        node, fact = forest.nodes[first], {"same": first if first != row else None}
        if node.v_hat is not None:
            before = stored_belief([node])
            fact |= {"v": node.v_hat, "sd": _deviation(before)}
            if all_N[first] and np.isfinite(before.concentration_A[0]):
                after = before.after(wins_N[[first]], all_N[[first]] - wins_N[[first]])
                fact["after"] = [round(float(after.mean_A[0]), 3), _deviation(after), int(all_N[first])]
        facts.append(fact)
    for row, chance in granted_utility(forest).items():
        facts[row]["chance"] = chance
    for leaf, anchor, flipped in zip(*(array.tolist() for array in flips(forest)), strict=True):
        changed, tried = facts[anchor].get("flips", (0, 0))
        facts[anchor]["flips"] = [changed + flipped, tried + 1]
        facts[leaf]["flipped"] = flipped or None
    return facts


def _deviation(belief: Belief) -> float:
    """Standard deviation of the chance of success; 0 for a point."""
    mean, concentration = float(belief.mean_A[0]), float(belief.concentration_A[0])
    return round(math.sqrt(mean * (1 - mean) / (1 + concentration)), 3)


def _lesson(root: Node, wins: int, losses: int) -> dict[str, float]:
    """Surprise |v̂ - V| and contrast 4 V (1 - V), V being the share of successes; empty where either is not known."""
    if root.v_hat is None or not wins + losses:
        return {}
    value = wins / (wins + losses)
    return {"surprise": round(abs(root.v_hat - value), 4), "contrast": round(4 * value * (1 - value), 4)}


def _node(node: Node, index: dict[int, int], facts: dict[str, Any]) -> dict[str, Any]:
    thought, mark, action = (node.action or "").rpartition("</think>")
    shown = facts | {
        "parent": index.get(node.parent_id, -1),
        "same": index.get(facts["same"]),
        "origin": str(node.origin),
        "thought": thought.replace("<think>", "").strip() if mark else "",
        "action": action.strip(),
        "observation": node.observation if node.parent_id >= 0 else None,
        "answer": node.answer,
        "error": node.error,
        "reward": node.reward,
        "stop": node.stop_reason,
        "status": None if node.status == "ok" else str(node.status),
        "granted": node.allocated or None,
        "value": node.value,
        "advantage": node.advantage,
        "tokens": sum(node.is_action) or None,
    }
    return {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in shown.items()
        if not (value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)))
    }


def _add_tokens(forest: Forest, found: list[dict[str, Any]], decode: Decode) -> str:
    """Gives the nodes their tokens as text, the most informative trees first, up to `TOKENS` on the page.

    Returns:
        The text with which every prompt begins, of which each root has the rest: the system's message and its tools.
    """
    known: dict[tuple[int, ...], str] = {}

    def text(*ids: int) -> str:
        if ids not in known:
            known[ids] = decode(list(ids))
        return known[ids]

    roots = [node.token_ids for node in forest.nodes if node.parent_id < 0]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*roots, strict=False)))
    head, left = text(*roots[0][:shared]) if roots else "", TOKENS
    by_tree = zip(forest.by_tree(np.arange(len(forest))), found, strict=True)
    for rows, tree in sorted(by_tree, key=lambda pair: (pair[1]["flips"] > 0, informative(pair[1])), reverse=True):
        nodes = [forest.nodes[row] for row in rows.tolist()]
        left -= sum(len(node.token_ids) for node in nodes)
        if left < 0:
            break
        tree["exact"] = decode(nodes[0].token_ids)[len(head) :]
        for node, shown in zip(nodes[1:], tree["nodes"][1:], strict=True):
            ids = node.token_ids
            # A token's text depends on the one before it: most tokenizers write a space between words, not before all.
            shown["pieces"] = [
                text(ids[i - 1], token)[len(text(ids[i - 1])) :] if i else text(token) for i, token in enumerate(ids)
            ]
            shown["logprobs"] = [round(value, 2) if math.isfinite(value) else None for value in node.logprobs]
    return head
