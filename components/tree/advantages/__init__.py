"""Advantages, by the names used in params.yaml: a module each."""

from components.registry import Registry
from components.tree.forest import Forest
from components.tree.terms import Advantage, Terms

ADVANTAGES: Registry[Advantage] = Registry("update.advantage", Advantage, __name__, "trace.advantages", separator="_")


def terms_of(forest: Forest, advantage: str) -> Terms:
    """The terms of the loss under a registered advantage.

    Raises:
        KeyError: if there is none of this name.
    """
    return ADVANTAGES[advantage]().terms(forest)
