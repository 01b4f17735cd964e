"""`mopps`: flat groups of prompts chosen by Thompson sampling from a Beta posterior (MoPPS)."""

from __future__ import annotations

import numpy as np

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import Arm
from components.allocation.budget import Budget
from components.allocation.draws import flat_groups, groups_in, nearest_to_half


class Mopps(Arm):
    """Draws one success rate for each prompt from its belief, and samples G for each of the units // G nearest 0.5.

    Meant for the per-prompt posterior, where the belief is Beta(alpha, beta) from the prompt's own past rollouts, as
    in the source; any belief with a concentration will do, and a point belief makes it `pcl`. The posterior, with its
    decay, is the predictor's business, not the arm's. The source selects from a larger candidate batch; so does this,
    the pool.
    """

    name = "mopps"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: np.random.Generator) -> np.ndarray:
        rate_P = pool.mean_A.copy()
        drawn = np.isfinite(pool.concentration_A) & (rate_P > 0) & (rate_P < 1)
        alpha = pool.mean_A[drawn] * pool.concentration_A[drawn]
        rate_P[drawn] = rng.beta(alpha, pool.concentration_A[drawn] - alpha)
        return flat_groups(nearest_to_half(rate_P, groups_in(budget), rng), len(pool), budget.group_size)
