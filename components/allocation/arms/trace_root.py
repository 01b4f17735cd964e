"""`trace-root`: roots planned, branch points drawn (active-uniform in Table 1)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Belief, Budget, Seen
from components.allocation.arms.treepo import TreePO
from components.allocation.roots import plan_roots


class TraceRoot(TreePO):
    """Active-uniform: roots by Eq. 13, continuations as in `treepo`."""

    name = "trace-root"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return plan_roots(pool, budget.root_units, budget.max_per_prompt, rng)
