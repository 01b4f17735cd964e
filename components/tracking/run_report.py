"""A run on one self-contained page: curves, where budget, contrast and time went, calibration, its best trees."""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup

from components.params.root import Params
from components.predictor.metrics import judgements, reliability
from components.secrets import masked
from components.tracking.advice import nothing_learnt
from components.tracking.contrast import Contrast
from components.tracking.names import Line
from components.tracking.pages import page
from components.tracking.plots import CALIBRATION, COLOURS, bars, curves, plot
from components.tracking.viewer import informative, trees
from components.tree.forest import Forest
from components.tree.metrics import ENDS, budget_flow

TREES = 10
TEXT = 600  # characters of a text that are shown

Table = tuple[list[str], list[list[str]]]  # head and rows


@dataclass(frozen=True)
class Digest:
    """What the page needs of an iteration's forest.

    Attributes:
        iteration: Its number.
        flow: Units, as `components.tree.metrics.budget_flow` gives them.
        judged: Turns, predictions and outcomes, as `components.predictor.metrics.judgements` gives them.
        contrast: What is left of it, turn by turn, and what one more rollout brings.
        trees: The most informative ones, as `components.tracking.viewer.trees` gives them.
    """

    iteration: int
    flow: dict[tuple[str, str], float]
    judged: tuple[np.ndarray, np.ndarray, np.ndarray]
    contrast: Contrast
    trees: list[dict[str, Any]]

    @classmethod
    def of(cls, iteration: int, forest: Forest, gold: Mapping[str, str] | None = None) -> Digest:
        best = heapq.nlargest(TREES, trees(forest, gold), key=informative)
        best = [tree | {"iteration": iteration} for tree in best]
        return cls(iteration, budget_flow(forest), judgements(forest), Contrast.of(forest), best)

    def units(self, what: str | None = None, end: str | None = None) -> float:
        """Units by what they bought and how the prompt ended; None stands for all."""
        return sum(u for (w, e), u in self.flow.items() if what in (None, w) and end in (None, e))


def run_report(
    run_id: str,
    params: Params,
    lines: Sequence[Line],
    accuracy: float | None,
    digests: Sequence[Digest],
    about: Iterable[tuple[str, str]] = (),
) -> str:
    """The page as HTML.

    Args:
        run_id: The run's name.
        params: Its parameters.
        lines: The lines of metrics.jsonl, in order; at least one.
        accuracy: On held-out prompts after the last line, where it was evaluated.
        digests: Of the iterations whose forests are there, in order.
        about: Further facts, e.g. when it ran.
    """
    turn_R, v_hat_R, reward_R = (
        np.concatenate(arrays) for arrays in zip(*(d.judged for d in digests), *[[np.zeros(0)] * 3], strict=True)
    )
    contrast = Contrast.total([d.contrast for d in digests])
    left = {turn: total / compared for turn, (_, compared, total) in enumerate(contrast.by_turn) if compared}
    kept, numbers = [d.iteration for d in digests], [line["iteration"] for line in lines]
    shown = heapq.nlargest(TREES, (tree for d in digests for tree in d.trees), key=informative)
    learnt = nothing_learnt([line for line in lines if "rollouts/trained" in line], params)
    stages = _by_stage(lines)
    return page(
        "run.html",
        f"Run {run_id}",
        {"trees": [_short(run_id, tree) for tree in shown]},
        facts=[*_facts(params, lines, accuracy), *about],
        notes=[note for note in (_missing(len(lines), kept), learnt and f"{learnt[0].upper()}{learnt[1:]}.") if note],
        parameters=masked(yaml.safe_dump(params.model_dump(), sort_keys=False)),
        curves=curves([*lines, {"iteration": len(lines), "eval/accuracy": accuracy}]),
        judged=curves(lines, CALIBRATION),
        flow=_pictures(_flows(lines, digests, params.allocation.pool), kept),
        times=_pictures(_times(stages), numbers),
        mixed=_percent(sum(d.units(end="mixed") for d in digests), sum(d.units() for d in digests)) if kept else "",
        bought=_bought(digests),
        spent=_spent(lines, digests, params.allocation.pool),
        verdict=contrast.can_stage_2_pay(),
        one_more=_one_more(contrast),
        by_turn=_by_turn(contrast, left),
        by_turn_plot=plot("V (1 − V) per passing rollout", {"": list(left.items())}, "turn"),
        roots=reliability(v_hat_R[turn_R == 0], reward_R[turn_R == 0]),
        prefixes=reliability(v_hat_R[turn_R > 0], reward_R[turn_R > 0]),
        scores=_scores(lines),
        slowest=_slowest(lines, stages),
        stages=_stages(lines, stages),
    )


def _short(run_id: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Long texts without their ends, so that a page of ten trees stays small, and the command that shows them whole."""

    def cut(value: Any) -> Any:
        return f"{value[:TEXT]} …" if isinstance(value, str) and len(value) > TEXT else value

    where = f"--iteration {tree['iteration']} --prompt {shlex.quote(tree['prompt'])}"
    return {key: cut(value) for key, value in tree.items()} | {
        "nodes": [{key: cut(value) for key, value in node.items()} for node in tree["nodes"]],
        "link": f"{tree['iteration']}/{tree['prompt']}",
        "command": f"trace view {shlex.quote(run_id)} {where}",
    }


def _pictures(panels: Mapping[str, Mapping[str, Sequence[float]]], iterations: Sequence[int]) -> Markup:
    return Markup("").join(bars(title, parts, iterations) for title, parts in panels.items() if iterations)


def _facts(params: Params, lines: Sequence[Line], accuracy: float | None) -> list[tuple[str, str]]:
    known = [a for a in (*(line.get("eval/accuracy") for line in lines), accuracy) if a is not None]
    done, asked = len(lines), params.run.iterations
    best = f", best {max(known):.3f}" if known else ""
    return [
        ("arm, task, seed", f"{params.allocation.arm}, {params.environment.name}, {params.run.seed}"),
        ("iterations", f"{done} of {asked}" + (", not finished" if done < asked else "")),
        ("accuracy on held-out prompts", f"{known[0]:.3f} → {known[-1]:.3f}{best}" if known else "–"),
        ("effective ratio by prompt, mean", _shown(_mean(lines, "effective_ratio/prompts"))),
        (
            "flip rate, mean",
            f"{_shown(_mean(lines, 'tree/flip_rate'))}, {_shown(_mean(lines, 'tree/expected_flip_rate'))} expected",
        ),
        ("units", f"{_total(lines, 'budget/units'):,.0f}"),
        ("leaves, sampled tokens", f"{_total(lines, 'budget/leaves'):,.0f}, {_total(lines, 'tokens/generated'):,.0f}"),
        ("time", _duration(_total(lines, "time/iteration"))),
    ]


def _missing(done: int, kept: list[int]) -> str:
    """What is said where forests are not there any more (`run.keep_forests`)."""
    if len(kept) == done:
        return ""
    removed = f"The forests of {done - len(kept)} of the {done} iterations were removed (run.keep_forests)"
    if not kept:
        return f"{removed}: budget by end, contrast, reliability and trees need them and are empty."
    return (
        f"{removed}; budget, contrast, reliability and trees are those of the {len(kept)} from {kept[0]} to {kept[-1]}."
    )


def _flows(lines: Sequence[Line], digests: Sequence[Digest], pool: int) -> dict[str, dict[str, list[float]]]:
    active = {line["iteration"]: line["budget/active_prompts"] / pool for line in lines}
    whats, ends = _names(digests)
    return {
        "Units by what they bought": {w: [d.units(what=w) for d in digests] for w in whats},
        "Units by how the prompt ended": {e: [d.units(end=e) for d in digests] for e in ends},
        "Share of the pool that was sampled": {"active prompts": [active[d.iteration] for d in digests]},
    }


def _names(digests: Sequence[Digest]) -> tuple[list[str], list[str]]:
    """What was bought in any iteration, prompts before prefixes and these by turn, and how prompts ended."""
    found = {key for d in digests for key in d.flow}
    whats = sorted({what for what, _ in found}, key=lambda what: (what.startswith("cont"), len(what), what))
    return whats, [end for end in ENDS if any(e == end for _, e in found)]


def _bought(digests: Sequence[Digest]) -> Table:
    whats, ends = _names(digests)
    whole = sum(d.units() for d in digests)
    rows = []
    for what in (*whats, None):
        units = sum(d.units(what) for d in digests)
        shares = [_percent(sum(d.units(what, end) for d in digests), units) for end in ends]
        rows.append([what or "all", f"{units:,.0f}", _percent(units, whole), *shares])
    return ["", "units", "share", *(f"to prompts: {end}" for end in ends)], rows


def _spent(lines: Sequence[Line], digests: Sequence[Digest], pool: int) -> Table:
    whats, ends = _names(digests)
    of = {d.iteration: d for d in digests}
    rows = []
    for line in lines:
        digest = of.get(line["iteration"])
        parts = [f"{digest.units(w):,.1f}" if digest else "–" for w in whats]
        shares = [_percent(digest.units(end=e), digest.units()) if digest else "–" for e in ends]
        active = line["budget/active_prompts"]
        given = [f"{line[key]:,.1f}" for key in ("budget/units", "budget/unspent")]
        rows.append([str(line["iteration"]), *given, *parts, *shares, f"{active:,.0f} ({_percent(active, pool)})"])
    return ["iteration", "units", "unspent", *whats, *ends, f"active, of {pool:,}"], rows


def _by_turn(contrast: Contrast, left: Mapping[int, float]) -> Table:
    rows = [
        [
            f"after turn {turn}" if turn else "at the prompt",
            f"{passed:,.0f}",
            f"{compared:,.0f}",
            _shown(left.get(turn)),
        ]
        for turn, (passed, compared, _) in enumerate(contrast.by_turn.tolist())
        if passed
    ]
    return ["", "rollouts passing", "of them compared", "V (1 − V)"], rows


def _one_more(contrast: Contrast) -> Table:
    rows = [[what, units, _shown(believed), _shown(seen)] for what, units, believed, seen in contrast.one_more()]
    return ["a rollout brings contrast", "units", "believed", "seen"], rows


def _scores(lines: Sequence[Line]) -> Table:
    rows = []
    for name, metrics in CALIBRATION.items():
        for key, where in metrics.items():
            known = [line[key] for line in lines if line.get(key) is not None]
            ends = (known[0], known[-1]) if known else (None, None)
            rows.append([f"{name} {where}", *map(_shown, (*ends, _mean(lines, key)))])
    return ["", "first", "last", "mean"], rows


def _by_stage(lines: Sequence[Line]) -> dict[str, np.ndarray]:
    """Seconds of each stage in each iteration, the slowest first; what is in none of them is `between stages`."""
    names = dict.fromkeys(key for line in lines for key in line if key.startswith("time/"))
    stages = {key: np.array([line.get(key) or 0.0 for line in lines]) for key in names}
    whole = stages.pop("time/iteration") + stages.pop("time/overlapped", 0.0)
    stages["between stages"] = np.maximum(whole - np.sum(list(stages.values()), axis=0), 0.0)
    slowest = sorted(stages.items(), key=lambda item: -item[1].sum())
    return {name.removeprefix("time/").replace("_", " "): seconds for name, seconds in slowest}


def _times(stages: dict[str, np.ndarray]) -> dict[str, dict[str, list[float]]]:
    named, others = list(stages.items())[: len(COLOURS) - 1], list(stages.values())[len(COLOURS) - 1 :]
    shown = dict(named) | ({"all others": np.sum(others, axis=0)} if others else {})
    whole = np.maximum(np.sum(list(shown.values()), axis=0), 1e-9)
    return {
        "Seconds": {name: seconds.tolist() for name, seconds in shown.items()},
        "Share of the iteration": {name: (seconds / whole).tolist() for name, seconds in shown.items()},
    }


def _stages(lines: Sequence[Line], stages: dict[str, np.ndarray]) -> Table:
    whole = sum(map(sum, stages.values()))
    rows = []
    for name, seconds in stages.items():
        worst = int(np.argmax(seconds))
        longest = f"{seconds[worst]:,.2f} (iteration {lines[worst]['iteration']})"
        rows.append([name, f"{sum(seconds):,.1f}", _percent(sum(seconds), whole), f"{np.mean(seconds):,.2f}", longest])
    return ["stage", "seconds", "share", "an iteration", "longest"], rows


def _slowest(lines: Sequence[Line], stages: dict[str, np.ndarray]) -> str:
    whole = float(np.sum(list(stages.values())))
    parts = [f"{name} ({_percent(float(seconds.sum()), whole)})" for name, seconds in list(stages.items())[:3]]
    overlap = _total(lines, "time/overlapped")
    said = (
        f" Stages of shards ran side by side for {_duration(overlap)}, which count in each of them." if overlap else ""
    )
    return f"Slowest: {', '.join(parts)}; shares are of {_duration(whole)}.{said}"


def _total(lines: Iterable[Line], key: str) -> float:
    return float(sum(line.get(key) or 0.0 for line in lines))


def _mean(lines: Iterable[Line], key: str) -> float | None:
    known = [line[key] for line in lines if line.get(key) is not None]
    return float(np.mean(known)) if known else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {round(seconds) % 60} s"
