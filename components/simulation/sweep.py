"""A grid of simulated iterations: arms against budget shapes, pool sizes and predictors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import stdtrit

from components.allocation.arms import ARMS
from components.allocation.budget import Budget
from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor
from components.simulation.run import simulate


@dataclass(frozen=True)
class Cell:
    """One point of the grid, and what came of it: the numbers of `simulate`, one dict for each seed."""

    arm: str
    budget: Budget
    pool: int
    predictor: NoisyPredictor
    runs: list[dict[str, float]]

    def values(self, name: str) -> np.ndarray:
        """One number of all seeds; `turns_gradient` is the squared gradient per generated turn. float64 (seeds,)."""
        if name == "turns_gradient":
            turns = self.values("turns")
            return np.where(turns > 0, self.values("squared_gradient") / np.maximum(turns, 1e-300), 0.0)
        return np.array([run[name] for run in self.runs])

    def mean(self, name: str) -> float:
        return float(self.values(name).mean())

    def margin(self, name: str) -> float:
        """Half the width of the 95 % interval of the mean over seeds (Student's t); NaN with one seed."""
        values, seeds = self.values(name), len(self.runs)
        return float(stdtrit(seeds - 1, 0.975) * values.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else float("nan")


def sweep(
    arms: Iterable[str],
    budgets: Iterable[Budget],
    pools: Iterable[int],
    predictors: Iterable[NoisyPredictor],
    population: Population,
    seeds: int = 1,
    seed: int = 0,
) -> list[Cell]:
    """Simulates every combination, with the same seeds for every arm: arms are compared on the same prompts."""
    cells = []
    for arm, budget, pool, predictor in product(arms, budgets, pools, predictors):
        rngs = (np.random.default_rng([seed, index]) for index in range(seeds))
        runs = [simulate(ARMS[arm](), budget, pool, population, predictor, rng) for rng in rngs]
        cells.append(Cell(arm, budget, pool, predictor, runs))
    return cells
