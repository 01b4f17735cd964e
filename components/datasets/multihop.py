"""Generates multi-hop questions, and demonstrations whose word frequencies set how hard each question is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from components.datasets.chains import draw_chains, zipf
from components.environments.base import Prompt
from components.environments.multihop import ENTITIES, FIELDS, RELATIONS, look_up


def generate_prompts(
    rng: np.random.Generator, hops: dict[int, float], relation_weights: np.ndarray | None = None
) -> Iterator[Prompt]:
    """An endless stream of prompts with ids by content.

    Args:
        rng: Source of everything drawn.
        hops: Weight of each number of look-ups.
        relation_weights: Weight of each relation word, in the order of `RELATIONS`; uniform by default.
    """
    for chain in draw_chains(rng, RELATIONS, hops, relation_weights):
        start = ENTITIES[rng.integers(len(ENTITIES))]
        yield make_prompt(int(rng.integers(2**31)), chain, start)


def make_prompt(seed: int, relations: list[str], start: str) -> Prompt:
    """The prompt "the r1 of the r2 of START ?" over the knowledge base of `seed`."""
    answer = start
    for relation in reversed(relations):
        answer = look_up(seed, answer, FIELDS[relation])
    question = " ".join(f"the {relation} of" for relation in relations) + f" {start} ?"
    content = hashlib.sha256(f"{seed}\0{question}\0{answer}".encode()).hexdigest()[:16]
    return Prompt(content, question, answer, {"seed": seed, "relations": relations, "start": start})


def zipf_weights(exponent: float) -> np.ndarray:
    """Weights 1/rank^exponent over the relation words."""
    return zipf(len(RELATIONS), exponent)


def vocabulary() -> list[str]:
    """Every word that questions, turns and observations can hold."""
    grammar = ["the", "of", "?", "<think>", "</think>", "search", "answer", "done", "nothing"]
    return [*grammar, *RELATIONS, *FIELDS.values(), *ENTITIES]
