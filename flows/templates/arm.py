"""The arm `example`: three rollouts for each of the prompts with the most expected contrast."""

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.draws import flat_groups
from components.allocation.utilities import contrast


class Example(Arm):
    """Three factual rollouts for each of the units // 3 prompts with the most expected contrast."""

    name = "example"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        best = np.lexsort((rng.random(len(pool)), -contrast(pool)))[: int(budget.units) // 3]
        return flat_groups(best, len(pool), 3)
