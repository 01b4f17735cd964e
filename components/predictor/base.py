"""What a predictor is: one model of the chance of success, shared by roots and prefixes, used by the allocator only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from components.allocation.base import Belief


class Predictor(Protocol):
    """Estimates V at prefixes, given as their exact token ids."""

    def predict(self, prefixes: Sequence[list[int]]) -> Belief:
        """What is believed of V at each prefix, in the order given."""

    def fit(
        self, prefixes: Sequence[list[int]], targets: np.ndarray, weights: np.ndarray, seed: int
    ) -> dict[str, float]:
        """Learns from targets in [0, 1] (Eq. 18), each the mean of `weights` leaves; returns metrics of the fit."""

    def save(self, path: Path) -> None:
        """Writes the state to a folder."""

    def load(self, path: Path) -> None:
        """Reads the state from a folder; raises `UserError` if it is missing or damaged."""
