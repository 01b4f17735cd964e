"""`treepo`: the uniform tree (uniform-uniform in Table 1)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Anchors, Arm, Belief, Budget, Seen
from components.allocation.draws import uniform_prefixes, uniform_tree_roots


class TreePO(Arm):
    """Uniform-uniform: G/2 factual rollouts for each of M // (G/2) prompts, N continuations each from random turns.

    The paper branches each rollout exactly N times; here the turns of a prompt's rollouts are drawn together, so that
    only their sum is exact.
    """

    name = "treepo"
    branches = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return uniform_tree_roots(len(pool), budget, rng)

    def plan_continuations(self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: Generator) -> np.ndarray:
        return uniform_prefixes(anchors, factual_S, budget, rng)
