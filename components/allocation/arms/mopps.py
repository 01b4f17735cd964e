"""`mopps`: flat groups of prompts chosen by Thompson sampling from a Beta posterior (MoPPS)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from components.allocation.arm import Arm, Belief, Budget, Seen
from components.allocation.draws import flat_groups, groups_in, nearest_to_half


class Mopps(Arm):
    """Draws one success rate for each prompt from its belief, and samples G for each of the units // G nearest 0.5.

    Meant for `predictor.name: beta`, the posterior of each prompt's own past rollouts, as in the source. A belief with
    any other concentration will do; a point belief makes it `pcl`.
    """

    name = "mopps"
    uses_predictor = True

    def plan_roots(self, pool: Belief, seen: Seen, budget: Budget, rng: Generator) -> np.ndarray:
        rate_P = pool.mean_A.copy()
        drawn = np.isfinite(pool.concentration_A) & (rate_P > 0) & (rate_P < 1)  # Beta distributions, not points
        alpha = pool.mean_A[drawn] * pool.concentration_A[drawn]
        rate_P[drawn] = rng.beta(alpha, pool.concentration_A[drawn] - alpha)
        return flat_groups(nearest_to_half(rate_P, groups_in(budget), rng), len(pool), budget.group_size)
