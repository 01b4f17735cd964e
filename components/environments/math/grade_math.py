"""Whether an answer is worth the gold answer, in a process of its own: a comparison that hangs is killed."""

from __future__ import annotations

from components.environments.math.equality import equal


def grade(pair: list[str]) -> bool:
    """Whether [gold, answer] agree; neither has a box."""
    gold, answer = pair
    return equal(gold, answer)


# The first calls build tables that every later one uses.
grade([r"\frac{1}{3} + x", "The answer is $x + 1/3$."])
grade([r"\frac{1}{3}", r"\int_0^1 x^2 dx"])
