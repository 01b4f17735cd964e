"""Environments: state in, state out."""

from components.environments.base import Environment, Prompt, Transition, replay
from components.environments.multihop import MultiHop

ENVIRONMENTS: dict[str, type[Environment]] = {"multihop": MultiHop}

__all__ = ["ENVIRONMENTS", "Environment", "Prompt", "Transition", "replay"]
