"""What the budget brought: effective ratio, flips, shared tokens, and the accounts.

"Both outcomes" means that scored leaves differ by more than rounding noise, so that graded rewards are covered, too.
Leaves that could not be scored never make contrast, and never count as wrong.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from components.allocation.budget import CONTINUATION_COST, ROOT_COST
from components.allocation.prefixes import is_open
from components.allocation.utilities import prefix_utility
from components.tree.anchors import SUCCESS, from_stage_1, merged_prefixes, visited_anchors
from components.tree.forest import Forest
from components.tree.groups import EPS
from components.tree.terms import Terms

NAN = float("nan")
ENDS = ("mixed", "all fail", "all succeed", "unscored")  # how a tree ended, by its scored leaves


def effective_ratio_by_prompt(forest: Forest) -> float:
    """Eq. 21: share of the active prompts whose leaves hold both outcomes; NaN without a prompt.

    It favours arms with many leaves per prompt; see `effective_ratio_matched`.
    """
    trees, mixed_L = _trees(forest), _in_mixed_tree(forest)
    return len(np.unique(forest.tree_N[forest.scored_L[mixed_L]])) / len(trees) if len(trees) else NAN


def effective_ratio_by_leaf(forest: Forest) -> float:
    """Eq. 20: share of the scored leaves that lie in a tree with both outcomes; NaN without a scored leaf."""
    mixed_L = _in_mixed_tree(forest)
    return float(mixed_L.mean()) if len(mixed_L) else NAN


def effective_ratio_matched(forest: Forest, leaves: int) -> float:
    """Share of prompts that would hold both outcomes, had each only `leaves` leaves, drawn from its own at random.

    In closed form: k of n leaves, n_g of them with reward g, differ with chance 1 - sum_g C(n_g, k) / C(n, k). Trees
    with fewer scored leaves are left out; NaN if none remains.
    """
    chances = []
    for rows in forest.by_tree(forest.scored_L):
        reward_L = forest.reward_N[rows]
        if len(reward_L) >= leaves:
            sizes = np.unique(np.round(reward_L / EPS), return_counts=True)[1]
            alike = [np.exp(_log_choose(n, leaves) - _log_choose(len(reward_L), leaves)) for n in sizes if n >= leaves]
            chances.append(1.0 - float(sum(alike)))
    return max(float(np.mean(chances)), 0.0) if chances else NAN


def flip_rates(forest: Forest) -> tuple[float, float]:
    """Share of the scored continuations whose outcome differs from that of the factual rollouts through their anchor.

    Continuations from a root, or from a prefix whose factual rollouts disagree or were not scored, have nothing to flip
    and do not count. Whether prefixes were well chosen is judged here, on fresh samples: the factual leaf itself was a
    reason for choosing.

    Returns:
        The share, and the share that was expected: the mean of E[V_pref(1)] (Eq. 15) under the beliefs of the forest
        given the factual rollouts, which is what the planner goes by. Both NaN without such continuations.
    """
    anchors, first_N = visited_anchors(forest), merged_prefixes(forest)
    row_N = np.zeros(len(forest), dtype=np.int64)
    row_N[anchors.node_A] = np.arange(len(anchors))
    leaf_L = forest.scored_L[forest.is_counterfactual_N[forest.scored_L]]
    row_L = row_N[first_N[[forest.nodes[leaf].anchor_id for leaf in leaf_L.tolist()]]]
    open_L = is_open(anchors)[row_L]
    leaf_L, row_L = leaf_L[open_L], row_L[open_L]
    if not len(leaf_L):
        return NAN, NAN
    passed_A = anchors.successes_A > 0
    seen = anchors.belief.after(anchors.successes_A, anchors.failures_A)
    expected_A = prefix_utility(seen, passed_A, np.ones(len(anchors), dtype=np.int64))
    flipped_L = (forest.reward_N[leaf_L] > SUCCESS) != passed_A[row_L]
    return float(flipped_L.mean()), float(expected_A[row_L].mean())


def unique_token_ratio(forest: Forest) -> float:
    """Tokens of the forest's nodes over the tokens of its root-to-leaf paths: 1 if nothing is shared, NaN if empty.

    Sampling, scoring and learning should cost in proportion to the numerator.
    """
    length_N = forest.tokens_N.copy()
    for row, parent in enumerate(forest.parent_N.tolist()):
        if parent >= 0:
            length_N[row] += length_N[parent]
    flat = int(length_N[forest.leaves_L].sum())
    return int(forest.tokens_N.sum()) / flat if flat else NAN


def units(forest: Forest) -> float:
    """Units that the forest's rollouts cost (App. E.5): 1 from a root, a half from a prefix."""
    return sum(_cost(forest, leaf) for leaf in forest.leaves_L.tolist())


def budget_flow(forest: Forest) -> dict[tuple[str, str], float]:
    """The units of `units`, by what they bought and by how the tree ended that they went to.

    Returns:
        (what, end) to units. What: ``factual rollouts``, ``further rollouts`` (from the prompt, in stage 2), or
        ``continuations after turn t``. End: one of `ENDS`; only a tree that ended ``mixed`` holds both outcomes.
    """
    flow: dict[tuple[str, str], float] = {}
    for rows in forest.by_tree(forest.leaves_L):
        end = _end(forest.reward_N[rows])
        for leaf in rows.tolist():
            turn = int(forest.turn_N[max(forest.nodes[leaf].anchor_id, 0)])
            at_root = "factual rollouts" if from_stage_1(forest, leaf) else "further rollouts"
            what = at_root if _cost(forest, leaf) == ROOT_COST else f"continuations after turn {turn}"
            flow[what, end] = flow.get((what, end), 0.0) + _cost(forest, leaf)
    return flow


def accounting(forest: Forest, terms: Terms) -> dict[str, float]:
    """Where the rollouts went. The counts nest, and what each step loses is named:

        sampled = verified + unscored;   verified = admitted + without_contrast;   admitted = trained + untrained

    Args:
        forest: The finished forest of an iteration.
        terms: Its terms.

    Returns:
        Flat names to numbers. `budget/wasted` are the rollouts that were paid for and not trained on.
    """
    trained = _trained(forest, terms)
    sampled, verified, admitted = len(forest.leaves_L), len(forest.scored_L), int(_in_mixed_tree(forest).sum())
    counts = {
        "rollouts/sampled": sampled,
        "rollouts/verified": verified,
        "rollouts/unscored": sampled - verified,
        "rollouts/admitted": admitted,
        "rollouts/without_contrast": verified - admitted,
        "rollouts/trained": trained,
        "rollouts/untrained": admitted - trained,
        "budget/wasted": sampled - trained,
    }
    return {name: float(value) for name, value in counts.items()}


def _cost(forest: Forest, leaf: int) -> float:
    anchor = forest.nodes[leaf].anchor_id
    return CONTINUATION_COST if anchor >= 0 and forest.parent_N[anchor] >= 0 else ROOT_COST


def _end(reward_L: np.ndarray) -> str:
    scored = reward_L[np.isfinite(reward_L)]
    if not len(scored):
        return "unscored"
    return "mixed" if np.ptp(scored) > EPS else "all succeed" if scored[0] > SUCCESS else "all fail"


def _trees(forest: Forest) -> np.ndarray:
    return np.unique(forest.tree_N)


def _in_mixed_tree(forest: Forest) -> np.ndarray:
    """Whether each scored leaf lies in a tree with both outcomes; bool, along `forest.scored_L`."""
    trees, tree_L = np.unique(forest.tree_N[forest.scored_L], return_inverse=True)
    reward_L = forest.reward_N[forest.scored_L]
    top, bottom = np.full(len(trees), -np.inf), np.full(len(trees), np.inf)
    np.maximum.at(top, tree_L, reward_L)
    np.minimum.at(bottom, tree_L, reward_L)
    mixed: np.ndarray = (top - bottom > EPS)[tree_L]
    return mixed


def _trained(forest: Forest, terms: Terms) -> int:
    """Scored leaves with at least one term on their path."""
    has_term = np.zeros(len(forest), dtype=bool)
    has_term[terms.node_K] = True
    own = set(terms.leaf_K.tolist())
    return sum(leaf in own or bool(has_term[forest.path(leaf)].any()) for leaf in forest.scored_L.tolist())


def _log_choose(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
