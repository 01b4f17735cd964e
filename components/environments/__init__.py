"""Environments: state in, state out."""

from collections.abc import Callable

from components.environments.base import Chat, Environment, Prompt, Transition, replay
from components.environments.multihop import MultiHop

# By the name used in params.yaml: makes the environment from the largest number of turns.
ENVIRONMENTS: dict[str, Callable[[int], Environment]] = {"multihop": MultiHop}

__all__ = ["ENVIRONMENTS", "Chat", "Environment", "Prompt", "Transition", "replay"]
