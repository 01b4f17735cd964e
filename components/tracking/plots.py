"""Charts of a run as pictures of their own: SVG that fills the width it gets, in the colours of its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from markupsafe import Markup

COLOURS = ("#3a8bd0", "#e07b30", "#3d9c70", "#a06cd5", "#d0567e", "#a8892c", "#4fa9b8", "#8a939c")  # on white, on black
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 190, 46, 8, 8, 36  # of a picture, and around its axes

Panels = dict[str, dict[str, str]]  # title to metric to what it is called
Points = Sequence[tuple[float, float]]

CURVES: Panels = {
    "Accuracy on held-out prompts": {"eval/accuracy": ""},
    "Effective ratio": {
        "effective_ratio/prompts": "by prompt",
        "effective_ratio/leaves": "by leaf",
        "effective_ratio/at_4_leaves": "at 4 leaves",
    },
    "Flip rate of continuations": {"tree/flip_rate": "seen", "tree/expected_flip_rate": "expected"},
    "Mean reward of factual rollouts": {"train/reward": ""},
    "Sampled tokens": {"tokens/generated": ""},
    "Rollouts": {"budget/factual_rollouts": "factual", "budget/continuations": "continuations"},
    "Tokens of a rollout": {"rollouts/tokens_mean": "mean", "rollouts/tokens_p95": "95 % are below"},
    "Entropy per token, in nats": {"policy/entropy": ""},
    "Why rollouts ended": {
        f"stop/{reason}": reason.replace("_", " ")
        for reason in ("answered", "max_turns", "length", "malformed_action", "tool_error")
    },
}
CALIBRATION: Panels = {
    name: {f"predictor/{metric}_root": "at prompts", f"predictor/{metric}_prefix": "at prefixes"}
    for name, metric in (("Spearman", "spearman"), ("Brier", "brier"), ("ECE", "ece"))
}


def curves(lines: Sequence[dict[str, Any]], panels: Panels = CURVES) -> Markup:
    """Metrics over iterations, a picture for each panel that has a value.

    Args:
        lines: The lines of metrics.jsonl, in order; what one does not have is left out of its curve.
        panels: What each picture shows.
    """
    pictures = Markup("")
    for title, metrics in panels.items():
        series = {
            label: [(line["iteration"], line[key]) for line in lines if line.get(key) is not None]
            for key, label in metrics.items()
        }
        pictures += plot(title, {label: points for label, points in series.items() if points})
    return pictures


def plot(title: str, series: Mapping[str, Points], across: str = "iteration") -> Markup:
    """Lines through the points of each name; nothing where there are none."""
    points = [point for each in series.values() for point in each]
    if not points:
        return Markup("")
    values = [y for _, y in points]
    x, y = _Axis.of([x for x, _ in points], LEFT, WIDTH - RIGHT, whole=True), _Axis.of(values, HEIGHT - BOTTOM, TOP)
    drawn = Markup("")
    for colour, each in zip(cycle(COLOURS), series.values(), strict=False):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in each)
        drawn += Markup('<polyline points="{}" stroke="{}"/>').format(path, colour)
        if len(each) <= 60:
            drawn += Markup("").join(
                Markup(
                    '<circle cx="{:.1f}" cy="{:.1f}" r="2.2" fill="{}"><title>{} {}: {:.4g}</title></circle>'
                ).format(x(a), y(b), colour, across, a, b)
                for a, b in each
            )
    return _picture(title, drawn, x, y, across, list(series))


def bars(title: str, parts: Mapping[str, Sequence[float]], iterations: Sequence[int]) -> Markup:
    """Bars over iterations, what makes them up on top of each other.

    Args:
        title: What they show.
        parts: Name to values along `iterations`.
        iterations: Their numbers; at least one.
    """
    tops = [sum(values) for values in zip(*parts.values(), strict=True)]
    x = _Axis.of([min(iterations) - 0.5, max(iterations) + 0.5], LEFT, WIDTH - RIGHT, whole=True)
    y = _Axis.of([0.0, *tops], HEIGHT - BOTTOM, TOP)
    drawn, below, width = Markup(""), [0.0] * len(iterations), 0.85 * (x(1) - x(0))
    for colour, values in zip(cycle(COLOURS), parts.values(), strict=False):
        path = "".join(
            f"M{x(at) - width / 2:.1f} {y(low):.1f}h{width:.1f}V{y(low + value):.1f}h{-width:.1f}z"
            for at, low, value in zip(iterations, below, values, strict=True)
            if value
        )
        drawn += Markup('<path d="{}" fill="{}"/>').format(path, colour)
        below = [low + value for low, value in zip(below, values, strict=True)]
    return _picture(title, drawn, x, y, "iteration", list(parts))


class _Axis:
    """From numbers to places in the picture, with ticks at round numbers."""

    def __init__(self, low: float, high: float, start: float, end: float, step: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end
        count = math.floor((high - low) / step + 1e-9)
        first = math.ceil(low / step - 1e-9) * step
        ticks = (round(first + k * step, 12) + 0.0 for k in range(count + 1))  # + 0.0: no tick is -0
        self.ticks = [tick for tick in ticks if tick <= high + 1e-9 * step]
        self.digits = max(0, -math.floor(math.log10(step) + 1e-9))

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float, whole: bool = False) -> _Axis:
        """An axis for values: exactly these if they are whole, else from tick to tick, and from 0 if that is near."""
        low, high = float(min(values)), float(max(values))
        if not whole and 0 <= low < 0.6 * high:
            low = 0.0
        if high - low < 1e-9 * max(1.0, abs(high)):  # one value: in the middle
            low, high = (low - 0.5, low + 0.5) if whole else (min(0.0, 2 * low), max(0.0, 2 * low) or 1.0)
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(nice * power for nice in (1, 2, 5, 10) if nice * power >= rough * (1 - 1e-9))
        step = max(step, 1.0) if whole else step
        if not whole:
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(low, high, start, end, step)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _picture(title: str, drawn: Markup, x: _Axis, y: _Axis, across: str, names: list[str]) -> Markup:
    """The picture in its frame, with ticks on both axes and a legend where there are several names."""
    frame = Markup("")
    for tick in y.ticks:
        frame += Markup(
            '<path class="grid" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
        ).format(LEFT, y(tick), WIDTH - RIGHT, LEFT - 5, y(tick) + 4, f"{tick:,.{y.digits}f}")
    floor = HEIGHT - BOTTOM
    for tick in x.ticks:
        frame += Markup('<path d="M{:.1f} {}v4"/><text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x(tick), floor, x(tick), floor + 16, f"{tick:.{x.digits}f}"
        )
    frame += Markup('<path d="M{} {}V{}H{}"/><text x="{}" y="{}" text-anchor="middle">{}</text>').format(
        LEFT, TOP, floor, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, across
    )
    keys = Markup("").join(
        Markup('<span><i style="background:{}"></i>{}</span>').format(colour, name)
        for colour, name in zip(cycle(COLOURS), names, strict=False)
        if len(names) > 1
    )
    return Markup(
        "<figure><figcaption>{}</figcaption>"
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{} by {}">{}{}</svg>'
        '<p class="keys">{}</p></figure>\n'
    ).format(title, WIDTH, HEIGHT, title, across, frame, drawn, keys)
