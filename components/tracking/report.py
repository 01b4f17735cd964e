"""An iteration on one self-contained page: its metrics, how well calibrated it was, and its most informative trees."""

from __future__ import annotations

from typing import Any

from components.predictor.metrics import judgements, reliability
from components.tracking.pages import page
from components.tracking.viewer import most_informative
from components.tree.forest import Forest

TREES = 12


def iteration_report(title: str, line: dict[str, Any], forest: Forest) -> str:
    """The page as HTML.

    Args:
        title: Its heading.
        line: The iteration's metrics, flat names ``group/name``.
        forest: Its finished forest.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, value in line.items():
        group, _, name = key.rpartition("/")
        groups.setdefault(group or "run", []).append((name, "–" if value is None else f"{value:.4g}"))
    shown = [tree | {"link": tree["prompt"]} for tree in most_informative(forest, TREES)]
    bins = reliability(*judgements(forest)[1:])
    return page("iteration.html", title, shown, groups=groups, bins=bins)
