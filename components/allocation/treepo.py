"""`treepo`, `trace-root` and `trace-prefix`: the uniform tree, and the two halves of TRACE (Table 1)."""

from __future__ import annotations

import numpy as np

from components.allocation.base import Anchors, Belief, OneRound, Shape
from components.allocation.draws import uniform_prefixes, uniform_tree_roots
from components.allocation.trace import Trace


class TreePO(OneRound):
    """Uniform-uniform: G/2 bare rollouts for each of M // (G/2) uniformly drawn prompts, then N continuations per bare
    rollout from uniformly drawn turns of the prompt's rollouts.

    The paper branches each rollout exactly N times; here the turns of a prompt's rollouts are drawn together, so that
    only their sum is exact.
    """

    uses_predictor = False

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return uniform_tree_roots(len(pool), shape, rng)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        return uniform_prefixes(anchors, bare, shape, rng)


class TraceRoot(OneRound):
    """Active-uniform: roots by Eq. 13, continuations as in `treepo`."""

    uses_predictor = True

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return Trace().plan_roots(pool, shape, rng)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        return uniform_prefixes(anchors, bare, shape, rng)


class TracePrefix(OneRound):
    """Uniform-active: roots as in `treepo`, continuations by Eq. 16."""

    uses_predictor = True

    def plan_roots(self, pool: Belief, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return uniform_tree_roots(len(pool), shape, rng)

    def plan_continuations(
        self, anchors: Anchors, bare: np.ndarray, shape: Shape, rng: np.random.Generator
    ) -> np.ndarray:
        return Trace().plan_continuations(anchors, bare, shape, rng)
