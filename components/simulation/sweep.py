"""A grid of simulated iterations: arms against budget shapes, pool sizes and predictors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from components.allocation import ARMS, Shape
from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor
from components.simulation.run import simulate


@dataclass(frozen=True)
class Cell:
    """One point of the grid, and what came of it (the means over seeds of `simulate`'s numbers)."""

    arm: str
    shape: Shape
    pool: int
    predictor: NoisyPredictor
    numbers: dict[str, float]


def sweep(
    arms: Iterable[str],
    shapes: Iterable[Shape],
    pools: Iterable[int],
    predictors: Iterable[NoisyPredictor],
    population: Population,
    seeds: int = 1,
    seed: int = 0,
) -> list[Cell]:
    """Simulates every combination, with the same seeds for every arm so that arms are compared on the same prompts.

    Raises:
        KeyError: if an arm is not registered.
    """
    cells = []
    for arm, shape, pool, predictor in product(arms, shapes, pools, predictors):
        runs = [
            simulate(ARMS[arm], shape, pool, population, predictor, np.random.default_rng([seed, index]))
            for index in range(seeds)
        ]
        numbers = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        cells.append(Cell(arm, shape, pool, predictor, numbers))
    return cells
