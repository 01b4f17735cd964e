"""`trace-prefix`: the second stage of `trace` alone (uniform-active in Table 1)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Belief, Budget, Seen
from components.allocation.arms.trace import Trace
from components.allocation.draws import uniform_tree_roots


class TracePrefix(Trace):
    """Uniform-active: roots as in `treepo`, continuations by Eq. 16."""

    name = "trace-prefix"

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        return uniform_tree_roots(len(pool), budget, rng)
