"""Environments: state in, state out; by the names used in params.yaml.

Each of the three settings of the paper has a built-in task, which the tiny policy learns, and one for real models.

| built-in | for real models |
| --- | --- |
| `multihop`: look-ups in a knowledge base | `search`: questions answered by searching a corpus |
| `calculator`: chained operations | `math`: problems with a Python tool |
| `devices`: settings of a house that rewires itself | `functions`: calls of stateful APIs (BFCL v4) |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from components.environments.base import Chat, Environment, Prompt, Transition, replay

if TYPE_CHECKING:
    from components.config import EnvironmentParams


def _multihop(settings: EnvironmentParams, cache: Path) -> Environment:
    """Built-in: chained look-ups in a knowledge base, by a search tool whose fields the question's words name."""
    from components.environments.multihop import MultiHop

    return MultiHop(settings.max_turns)


def _calculator(settings: EnvironmentParams, cache: Path) -> Environment:
    """Built-in: chained arithmetic, one operation of a calculator at a time."""
    from components.environments.calculator import Calculator

    return Calculator(settings.max_turns)


def _devices(settings: EnvironmentParams, cache: Path) -> Environment:
    """Built-in: settings of a house that rewires itself, by calls on its circuits."""
    from components.environments.devices import Devices

    return Devices(settings.max_turns)


def _search(settings: EnvironmentParams, cache: Path) -> Environment:
    """For real models: questions answered by searching a corpus, or a search server."""
    from components.environments.search import Search, load_examples, make_retriever

    examples = load_examples(settings.examples) if settings.examples else ()
    return Search(make_retriever(settings, cache), settings.max_turns, settings.react, examples=examples)


def _math(settings: EnvironmentParams, cache: Path) -> Environment:
    """For real models: mathematical problems with a Python tool."""
    from components.environments.math import MathWithPython, shared_tool

    return MathWithPython(settings.max_turns, shared_tool(settings.python))


def _functions(settings: EnvironmentParams, cache: Path) -> Environment:
    """For real models: calls of the simulated APIs of the Berkeley leaderboard (BFCL v4)."""
    from components.environments.functions import Functions

    return Functions(settings.max_turns)


# Each makes the environment from its settings and a folder for what it caches.
ENVIRONMENTS: dict[str, Callable[[EnvironmentParams, Path], Environment]] = {
    "multihop": _multihop,
    "calculator": _calculator,
    "devices": _devices,
    "search": _search,
    "math": _math,
    "functions": _functions,
}

__all__ = ["ENVIRONMENTS", "Chat", "Environment", "Prompt", "Transition", "replay"]
