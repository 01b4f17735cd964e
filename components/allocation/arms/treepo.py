"""`treepo`: the uniform tree (uniform-uniform in Table 1)."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Anchors, Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.draws import uniform_prefixes, uniform_tree_roots


class TreePO(Arm):
    """Uniform-uniform: G/2 factual rollouts for each of M // (G/2) uniformly drawn prompts, then N continuations per
    factual rollout from uniformly drawn turns of the prompt's rollouts.

    The paper branches each rollout exactly N times; here the turns of a prompt's rollouts are drawn together, so that
    only their sum is exact.
    """

    name = "treepo"
    branches = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        return uniform_tree_roots(len(pool), budget, rng)

    def plan_continuations(
        self, anchors: Anchors, factual_S: np.ndarray, budget: Budget, rng: np.random.Generator
    ) -> np.ndarray:
        return uniform_prefixes(anchors, factual_S, budget, rng)
