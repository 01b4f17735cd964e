"""Runs beside each other: arms at equal units and at equal tokens, with 95 % intervals paired by seed.

Accuracy is that on held-out prompts, linear between two evaluations. Runs are compared as far as all of their setting
go: at the units (tokens) that the shortest has spent. An interval is mean ± t_{.975, n-1} s / √n over the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import stdtrit

Row = dict[str, Any]  # an arm in a setting

RATIOS = {
    "effective_ratio": "effective_ratio/prompts",
    "effective_ratio_leaves": "effective_ratio/leaves",
    "effective_ratio_at_4_leaves": "effective_ratio/at_4_leaves",
}


@dataclass(frozen=True)
class Curve:
    """One run.

    Attributes:
        run_id, task, setting, arm, seed: What it is; runs of one task and setting differ in arm and seed alone.
        units, tokens: Spent before each evaluation, ascending; float64 (E,).
        accuracy: At each evaluation; float64 (E,).
        history: Metrics by name, one value an iteration, NaN where one is not defined; float64 (K,).
        depths: Continuations by the depth of the prefix that they left from, over all iterations whose forest is
            kept; float64 (D,), from depth 0, where factual rollouts are counted.
    """

    run_id: str
    task: str
    setting: str
    arm: str
    seed: int
    units: np.ndarray
    tokens: np.ndarray
    accuracy: np.ndarray
    history: dict[str, np.ndarray] = field(default_factory=dict)
    depths: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def title(self) -> str:
        """Task and setting."""
        return f"{self.task}, {self.setting}" if self.setting else self.task

    def mean(self, key: str) -> float:
        """Mean of a metric over the iterations that have it; NaN if none has."""
        values = self.history.get(key, np.zeros(0))
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else float("nan")

    def at(self, axis: str, spent: float) -> float:
        """Accuracy once `spent` units or tokens were spent."""
        return float(np.interp(spent, getattr(self, axis), self.accuracy))

    def area(self, axis: str, spent: float) -> float:
        """Mean accuracy from 0 to `spent` units or tokens: the area under the curve over its width."""
        x = getattr(self, axis)
        inner = x[(x > 0) & (x < spent)]
        grid = np.concatenate([[0.0], inner, [spent]])
        return float(np.trapezoid(np.interp(grid, x, self.accuracy), grid) / spent)

    def cost(self, axis: str, accuracy: float) -> float:
        """Units or tokens after which `accuracy` is first reached; NaN if it never is."""
        x, y = getattr(self, axis), self.accuracy
        if y[0] >= accuracy:
            return float(x[0])
        for k in np.flatnonzero(y >= accuracy)[:1]:
            share = (accuracy - y[k - 1]) / (y[k] - y[k - 1])
            return float(x[k - 1] + share * (x[k] - x[k - 1]))
        return float("nan")


@dataclass(frozen=True)
class Estimate:
    """Mean and half the width of its 95 % interval over n values; the half width is NaN for fewer than two."""

    mean: float
    margin: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """NaN among the values counts as missing."""
        known = np.array([v for v in values if np.isfinite(v)])
        if not len(known):
            return cls(float("nan"), float("nan"), 0)
        spread = known.std(ddof=1) / np.sqrt(len(known)) if len(known) > 1 else float("nan")
        return cls(float(known.mean()), float(stdtrit(len(known) - 1, 0.975) * spread), len(known))


def summarise(curves: Sequence[Curve], baseline: str, accuracy: float | None = None) -> list[Row]:
    """One row for each setting and arm.

    Args:
        curves: All runs.
        baseline: The arm that others are set against.
        accuracy: What `cost_units` and `cost_tokens` must reach; by default the baseline's mean accuracy at the end.

    Returns:
        Rows with the keys task, setting, arm, seeds (how many), units and tokens (spent at the comparison),
        and an `Estimate` each for accuracy and area at units and at tokens, their differences from the baseline
        (`…_gain`, paired by seed), the ratios, the cost of reaching `reached`, and seconds.
    """
    rows = []
    for title in dict.fromkeys(c.title for c in curves):
        mine = [c for c in curves if c.title == title]
        limit = {axis: min(float(getattr(c, axis)[-1]) for c in mine) for axis in ("units", "tokens")}
        base = {c.seed: c for c in mine if c.arm == baseline}
        target = accuracy
        if target is None and base:
            target = float(np.mean([c.at("units", limit["units"]) for c in base.values()]))
        for arm in dict.fromkeys(c.arm for c in mine):
            runs = [c for c in mine if c.arm == arm]
            row: Row = {"task": mine[0].task, "setting": mine[0].setting, "arm": arm, "seeds": len(runs)}
            row |= {**limit, "reached": target}
            for axis, spent in limit.items():
                for name, measure in (("accuracy", Curve.at), ("area", Curve.area)):
                    row[f"{name}_at_{axis}"] = Estimate.of([measure(c, axis, spent) for c in runs])
                    gains = [
                        measure(c, axis, spent) - measure(base[c.seed], axis, spent) for c in runs if c.seed in base
                    ]
                    row[f"{name}_at_{axis}_gain"] = Estimate.of(gains if arm != baseline else [])
                reached = [c.cost(axis, target) for c in runs] if target is not None else []
                row[f"cost_{axis}"] = Estimate.of(reached)
            row |= {name: Estimate.of([c.mean(key) for c in runs]) for name, key in RATIOS.items()}
            row["seconds"] = Estimate.of([float(c.history["time/iteration"].sum()) for c in runs])
            rows.append(row)
    return rows


COLUMNS = {
    "accuracy_at_units": "accuracy, equal units",
    "accuracy_at_units_gain": "gain",
    "area_at_units": "area, equal units",
    "area_at_units_gain": "gain",
    "accuracy_at_tokens": "accuracy, equal tokens",
    "accuracy_at_tokens_gain": "gain",
    "cost_units": "units to reach it",
    "effective_ratio": "effective ratio",
    "effective_ratio_leaves": "by leaf",
    "effective_ratio_at_4_leaves": "at 4 leaves",
    "seconds": "seconds",
}


def cells(row: Row, columns: Iterable[str] = COLUMNS) -> list[str]:
    """A row as text: its arm, its number of seeds, and the columns."""
    return [row["arm"], str(row["seeds"])] + [_shown(name, row[name], row["seeds"]) for name in columns]


def _shown(name: str, value: Estimate, seeds: int) -> str:
    if not value.n:
        return "never" if name.startswith("cost") else "–"
    wide = name == "seconds" or name.startswith("cost")
    number = f"{value.mean:,.0f}" if wide else f"{value.mean:{'+' if name.endswith('gain') else ''}.3f}"
    if np.isfinite(value.margin):
        number += f" ± {value.margin:,.0f}" if wide else f" ± {value.margin:.3f}"
    return number + (f" ({value.n} of {seeds})" if name.startswith("cost") and value.n < seeds else "")


def markdown(rows: Sequence[Row]) -> str:
    """A table for each task and setting."""
    parts = []
    for title, mine in by_title(rows).items():
        head = ["arm", "seeds", *COLUMNS.values()]
        reached = "" if mine[0]["reached"] is None else f"; accuracy to reach: {mine[0]['reached']:.3f}"
        lines = [
            f"**{title}**: at {mine[0]['units']:,.0f} units and at {mine[0]['tokens']:,.0f} tokens{reached}\n",
            "| " + " | ".join(head) + " |",
            "| " + " | ".join(["---"] * len(head)) + " |",
            *("| " + " | ".join(cells(row)) + " |" for row in mine),
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def by_title(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each task and setting, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(", ".join(filter(None, (row["task"], row["setting"]))), []).append(row)
    return found


def flat(row: Row) -> Row:
    """A row with plain numbers: each estimate as name, name_low and name_high; None where there is none."""
    out: Row = {}
    for name, value in row.items():
        if isinstance(value, Estimate):
            known = value.n > 0
            out[name] = value.mean if known else None
            sure = known and np.isfinite(value.margin)
            out[f"{name}_low"] = value.mean - value.margin if sure else None
            out[f"{name}_high"] = value.mean + value.margin if sure else None
        else:
            out[name] = value
    return out
