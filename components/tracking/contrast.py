"""Where contrast is left: V (1 - V) by turn, and what one more rollout brings at the prompt and at a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from components.allocation.budget import CONTINUATION_COST, ROOT_COST
from components.allocation.utilities import prefix_utility
from components.tree.anchors import stored_belief
from components.tree.forest import Forest
from components.tree.metrics import flips, planned_outcomes

ENOUGH = 30  # continuations from which on what was seen counts, not what was believed


@dataclass(frozen=True)
class Contrast:
    """What `contrast_by_turn`, `believed_flips` and `seen_flips` give, of one forest or of several."""

    by_turn: np.ndarray
    believed: np.ndarray
    seen: np.ndarray

    @classmethod
    def of(cls, forest: Forest) -> Contrast:
        return cls(contrast_by_turn(forest), believed_flips(forest), seen_flips(forest))

    @classmethod
    def total(cls, parts: Sequence[Contrast]) -> Contrast:
        """That of all forests together."""
        by_turn, seen = np.zeros((max((len(part.by_turn) for part in parts), default=0), 3)), np.zeros((2, 2))
        for part in parts:
            by_turn[: len(part.by_turn)] += part.by_turn
            seen += part.seen
        return cls(by_turn, np.concatenate([np.zeros((0, 2)), *(part.believed for part in parts)]), seen)

    def one_more(self) -> list[tuple[str, str, float | None, float | None]]:
        """The chance that a rollout brings contrast: what it is, its units, and the chance as believed and as seen."""
        _, compared, contrast = self.by_turn[0] if len(self.by_turn) else (0, 0, 0)
        believed = self.believed.mean(axis=0).tolist() if len(self.believed) else [None, None]
        seen = [brought / met if met else None for met, brought in self.seen.tolist()]
        return [
            ("a second rollout of any prompt", "1", None, 2 * contrast / compared if compared else None),
            ("one more from the prompt, in a tree without contrast", "1", believed[0], seen[0]),
            ("one from a prefix of such a tree (believed: the best)", "½", believed[1], seen[1]),
        ]

    def can_stage_2_pay(self) -> str:
        """One line: whether continuations are worth their units, beside further rollouts from the prompt."""
        (_, _, believed_root, seen_root), (_, _, believed_prefix, seen_prefix) = self.one_more()[1:]
        (met_root, _), (met_prefix, _) = self.seen.tolist()
        if met_prefix >= ENOUGH and seen_root is not None and seen_prefix is not None:
            root, prefix, said = seen_root, seen_prefix, f"as seen over {met_prefix:,.0f} continuations"
            variance = root * (1 - root) / met_root + prefix * (1 - prefix) / met_prefix / CONTINUATION_COST**2
        elif believed_root is not None and believed_prefix is not None:
            root, prefix, variance = believed_root, believed_prefix, 0.0
            said = f"as the predictor believes ({len(self.believed):,} trees)"
        else:
            return "Whether stage 2 can pay is not known: few continuations were bought, and no prefix was predicted."
        gain = prefix / CONTINUATION_COST - root / ROOT_COST
        pays = "can pay" if gain > 0 else "cannot pay"
        if abs(gain) < 2 * variance**0.5:
            pays = "neither gains nor loses more than the noise"
        return (
            f"Stage 2 {pays} in this run: to a tree that stage 1 left without contrast, one more rollout from the "
            f"prompt brings it with chance {root:.3f} for 1 unit, one from a prefix with {prefix:.3f} for ½, {said}."
        )


def contrast_by_turn(forest: Forest) -> np.ndarray:
    """How much the outcomes below equal histories still differ, turn by turn, from the rollouts of stage 1.

    At a history that n of them passed, s with success, s (n - s) / (n (n - 1)) estimates V (1 - V) without bias; each
    history counts once for every rollout that passed. Histories that only one rollout passed say nothing.

    Returns:
        Rollouts that passed a history of t turns, those of them that can be compared, and the sum of V (1 - V) over the
        latter; float64 (T, 3).
    """
    _, successes_N, failures_N = planned_outcomes(forest)
    passed_N = successes_N + failures_N
    compared_N = np.where(passed_N > 1, passed_N, 0)
    contrast_N = successes_N * failures_N / np.maximum(passed_N - 1, 1)
    columns = [np.bincount(forest.turn_N, weights=values) for values in (passed_N, compared_N, contrast_N)]
    return np.stack(columns, axis=1) if len(forest) else np.zeros((0, 3))


def believed_flips(forest: Forest) -> np.ndarray:
    """For each tree that stage 1 left without contrast: the chance that one more rollout brings it, as was believed.

    Returns:
        Given stage 1's outcomes (Eq. 15 with one continuation): from the prompt, and from the best prefix. Trees
        without a prediction at a prefix are left out. float64 (S, 2).
    """
    _, successes_N, failures_N = planned_outcomes(forest)
    found: list[tuple[float, float]] = []
    for rows in forest.by_tree(np.flatnonzero(successes_N + failures_N)):
        agree = (successes_N[rows[0]] > 0) != (failures_N[rows[0]] > 0)
        known = [row for row in rows.tolist() if forest.nodes[row].v_hat is not None]
        if agree and len(known) > 1 and known[0] == rows[0]:
            belief = stored_belief([forest.nodes[row] for row in known]).after(successes_N[known], failures_N[known])
            root, *prefixes = prefix_utility(
                belief, successes_N[known] > 0, np.ones(len(known), dtype=np.int64)
            ).tolist()
            found.append((root, max(prefixes)))
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def seen_flips(forest: Forest) -> np.ndarray:
    """The same as it came: rollouts that met a tree without contrast, and those of them that brought it.

    At the prompt, each rollout of stage 1 in turn is the one more, and the tree's others are those before. At prefixes,
    all continuations in trees that stage 1 left without contrast count, whether or not their prefix is the best.

    Returns:
        Met and brought, at the prompt and at prefixes; float64 (2, 2).
    """
    _, successes_N, failures_N = planned_outcomes(forest)
    seen = np.zeros((2, 2))
    for root in np.flatnonzero(forest.is_root_N).tolist():
        s, f = int(successes_N[root]), int(failures_N[root])
        if s + f > 1:
            odd = ((s == 1) + (f == 1)) / (s + f) if s and f else 0.0  # the only one of its kind comes last
            seen[0] += (odd if s and f else 1.0, odd)
    leaf_L, _, flipped_L = flips(forest)
    for leaf, flipped in zip(leaf_L.tolist(), flipped_L.tolist(), strict=True):
        root = forest.path(leaf)[0]
        if not (successes_N[root] and failures_N[root]):
            seen[1] += (1, flipped)
    return seen
