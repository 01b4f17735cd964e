"""What the budget brought: effective ratio, flips, shared tokens, and the accounts.

"Both outcomes" means that scored leaves differ by more than rounding noise, so that graded rewards are covered, too.
Leaves that could not be scored never make contrast, and never count as wrong.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from components.allocation.budget import CONTINUATION_COST, ROOT_COST
from components.allocation.utilities import prefix_utility
from components.tree.anchors import SUCCESS, from_stage_1, merged_prefixes, stored_belief
from components.tree.forest import Forest
from components.tree.groups import EPS
from components.tree.terms import Terms

NAN = float("nan")
ENDS = ("mixed", "all fail", "all succeed", "unscored")  # how a tree ended, by its scored leaves


def effective_ratio_by_prompt(forest: Forest) -> float:
    """Eq. 21: share of the active prompts whose leaves hold both outcomes; NaN without a prompt.

    It favours arms with many leaves per prompt; see `effective_ratio_matched`.
    """
    mixed = np.unique(forest.tree_N[forest.scored_L[_in_mixed_tree(forest)]])
    return len(mixed) / len(np.unique(forest.tree_N)) if len(forest) else NAN


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


def planned_outcomes(forest: Forest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What was known when stage 2 was planned: the outcomes of stage 1's rollouts through each prefix.

    Returns:
        first_N: The first node with the same history, as `merged_prefixes` gives it; int64.
        successes_N, failures_N: At those first nodes, 0 elsewhere; int64.
    """
    first_N = merged_prefixes(forest)
    successes_N, failures_N = np.zeros((2, len(forest)), dtype=np.int64)
    for leaf in forest.scored_L.tolist():
        if from_stage_1(forest, leaf):
            rows = first_N[forest.path(leaf)[:-1]]
            (successes_N if forest.reward_N[leaf] > SUCCESS else failures_N)[rows] += 1
    return first_N, successes_N, failures_N


def flips(forest: Forest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scored continuations that could flip an outcome, and those that did.

    Continuations from a root, or from a prefix whose factual rollouts disagree or were not scored, have nothing to flip
    and are left out.

    Returns:
        leaf_L, anchor_L: Their leaves, and the first nodes with the history that they start from; int64.
        flipped_L: Whether the outcome differs from that of the factual rollouts through the anchor; bool.
    """
    first_N, successes_N, failures_N = planned_outcomes(forest)
    leaf_L = forest.scored_L[forest.is_counterfactual_N[forest.scored_L]]
    anchor_L = first_N[np.array([forest.nodes[leaf].anchor_id for leaf in leaf_L.tolist()], dtype=np.int64)]
    open_L = (forest.turn_N[anchor_L] > 0) & ((successes_N[anchor_L] > 0) != (failures_N[anchor_L] > 0))
    leaf_L, anchor_L = leaf_L[open_L], anchor_L[open_L]
    return leaf_L, anchor_L, (forest.reward_N[leaf_L] > SUCCESS) != (successes_N[anchor_L] > 0)


def flip_rates(forest: Forest) -> tuple[float, float]:
    """Share of the continuations of `flips` that flipped, and the share that was expected.

    Whether prefixes were well chosen is judged here, on fresh samples: the factual leaf itself was a reason to choose.
    Expected is the mean of E[V_pref(1)] (Eq. 15) over their anchors, under each anchor's own belief given the rollouts
    of stage 1 through it: what the planner knew. Extra root rollouts of stage 2 came later, and pass prefixes at which
    nothing was predicted, so they take no part.

    Returns:
        Both shares; NaN without such continuations, or without predictions at their anchors.
    """
    _, anchor_L, flipped_L = flips(forest)
    _, successes_N, failures_N = planned_outcomes(forest)
    known = [row for row in anchor_L.tolist() if forest.nodes[row].v_hat is not None]
    belief = stored_belief([forest.nodes[row] for row in known]).after(successes_N[known], failures_N[known])
    expected_K = prefix_utility(belief, successes_N[known] > 0, np.ones(len(known), dtype=np.int64))
    return float(flipped_L.mean()) if len(flipped_L) else NAN, float(expected_K.mean()) if known else NAN


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
    """Scored leaves of which a token that they sampled themselves has a term; a shared prefix is its first owner's."""
    has_term = np.zeros(len(forest), dtype=bool)
    has_term[terms.node_K] = True
    trained = 0
    for leaf in forest.scored_L.tolist():
        path = forest.path(leaf)
        trained += bool(has_term[path[path.index(forest.nodes[leaf].anchor_id) + 1 :]].any())
    return trained


def _log_choose(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
