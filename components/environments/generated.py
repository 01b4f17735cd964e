"""Tasks that the tiny policy learns: prompts are generated, and every word is known.

All share two dials: how many steps a question takes (`hops`), and how rare some skill words are in the demonstrations
that the policy is warmed up on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from components.environments.base import Environment, EnvironmentParams, Prompt, Splits
from components.errors import UserError
from components.params.base import Hops

SEED = 20260610  # a data set is the same for every run seed
PATIENCE = 1000  # draws in a row that bring nothing new


class GeneratedParams(EnvironmentParams):
    """The task, and how hard its generator makes it."""

    turns_per_step: ClassVar[int] = 1

    hops: Hops = Field({2: 0.4, 3: 0.35, 4: 0.25}, description="Share of questions by number of steps.")

    @model_validator(mode="after")
    def _check(self) -> GeneratedParams:
        if self.max_turns < self.turns_per_step * max(self.hops) + 1:
            raise ValueError(f"max_turns={self.max_turns} leaves no turn for the answer after {max(self.hops)} hops")
        return self


class GeneratedEnvironment(Environment):
    """A task whose questions are chains of skill words.

    Attributes:
        skills: What chains are made of; in demonstrations the first are the most frequent.
    """

    Params: ClassVar[type[EnvironmentParams]] = GeneratedParams
    needs_model = False
    skills: ClassVar[list[str]]

    def make_prompt(self, rng: np.random.Generator, chain: list[str]) -> Prompt:
        """A prompt that takes these skills, in the order of the question."""
        raise NotImplementedError

    def vocabulary(self) -> list[str]:
        """Every word that questions, turns and observations can hold."""
        raise NotImplementedError

    def generate(self, rng: np.random.Generator, hops: dict[int, float], zipf: float = 0.0) -> Iterator[Prompt]:
        """An endless stream of prompts.

        Args:
            rng: Source of everything drawn.
            hops: Weight of each number of steps.
            zipf: The skill of rank r is drawn with frequency 1/r^zipf.
        """
        numbers = sorted(hops)
        length_cdf = _cdf(np.array([hops[n] for n in numbers], dtype=float))
        skill_cdf = _cdf(1.0 / np.arange(1, len(self.skills) + 1) ** zipf)
        while True:
            size = numbers[length_cdf.searchsorted(rng.random(), side="right")]
            chain = [self.skills[i] for i in skill_cdf.searchsorted(rng.random(size), side="right").tolist()]
            yield self.make_prompt(rng, chain)

    def prompts(self) -> Splits:
        """All different, exactly as many as `*_prompts` say.

        Raises:
            UserError: if there are not so many.
        """
        stream = self.generate(np.random.default_rng(SEED), self.params.hops)
        seen: set[str] = set()
        splits: dict[str, list[Prompt]] = {"train": [], "val": [], "test": []}
        repeated = 0
        for split, prompts in splits.items():
            wanted = getattr(self.params, f"{split}_prompts")
            while len(prompts) < wanted:
                prompt = next(stream)
                repeated = repeated + 1 if prompt.prompt_id in seen else 0
                if repeated > PATIENCE:
                    raise UserError(
                        f"environment.{split}_prompts={wanted}: {self.name} with hops={self.params.hops} has no more "
                        f"than about {len(seen)} different prompts"
                    )
                if not repeated:
                    seen.add(prompt.prompt_id)
                    prompts.append(prompt)
        return splits


def _cdf(weights: np.ndarray) -> np.ndarray:
    """The cumulative distribution that `Generator.choice` draws from; it would prepare it anew at every call."""
    cdf: np.ndarray = (weights / weights.sum()).cumsum()
    cdf /= cdf[-1]
    return cdf
