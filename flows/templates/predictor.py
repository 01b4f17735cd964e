"""The predictor `example`: the rate of success after each number of turns."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from components.allocation.anchors import Belief
from components.errors import UserError
from components.params.base import Fraction
from components.predictor.base import Predictor, PredictorParams, Prefix
from components.storage import read_json, write_json


class ExampleParams(PredictorParams):
    """Who estimates the chance of success: counts by turn."""

    decay: Fraction = Field(0.8, description="Fading of the counts per refit.")


class Example(Predictor):
    """The rate of success after each number of turns, whatever the prompt; rollouts of earlier iterations fade."""

    name = "example"
    Params = ExampleParams

    def __init__(self, params: ExampleParams, policy: Path) -> None:
        self.decay = params.decay
        self.counts: dict[str, tuple[float, float]] = {}  # successes and failures by turn

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        known = np.array([self.counts.get(str(p.turn), (0.0, 0.0)) for p in prefixes]).reshape(-1, 2) + 1.0
        return Belief(known[:, 0] / known.sum(1), known.sum(1))

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        self.counts = {turn: (a * self.decay, b * self.decay) for turn, (a, b) in self.counts.items()}
        for prefix, k, n in zip(prefixes[:new], successes[:new].tolist(), trials[:new].tolist(), strict=True):
            a, b = self.counts.get(str(prefix.turn), (0.0, 0.0))
            self.counts[str(prefix.turn)] = (a + k, b + n - k)
        return {"turns_seen": float(len(self.counts))}

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "counts.json", self.counts)

    def load(self, path: Path) -> None:
        try:
            self.counts = {turn: (float(a), float(b)) for turn, (a, b) in read_json(path / "counts.json").items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{path}: the predictor's state is missing or damaged ({error})") from error
