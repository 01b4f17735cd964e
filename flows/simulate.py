"""`trace simulate`: plan a budget before renting a GPU. Nothing heavy is imported before the command runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from components.errors import UserError

if TYPE_CHECKING:
    from components.allocation.budget import Budget
    from components.simulation import Cell, NoisyPredictor, Population

console = Console()

MAIN_ARMS = "grpo,grpo-filter,reinforce-ada,pcl,pcl-filter,treepo,trace-root,trace-prefix,trace,trace-unified"
RUN_ITERATIONS = 5  # newest iterations of a run that `--like` looks at
MANY = 200_000  # simulated prompts of an arm, over all seeds, from which on more seeds add nothing to the eye


class BeliefKind(StrEnum):
    PLUG_IN = "plug-in"
    POSTERIOR = "posterior"


class Sweep(StrEnum):
    SHAPE = "shape"
    POOL = "pool"
    NOISE = "noise"

    @property
    def label(self) -> str:
        """What is varied, in words."""
        return {
            Sweep.SHAPE: "budget's shape M : N, at equal units",
            Sweep.POOL: "pool factor, prompts for each flat group",
            Sweep.NOISE: "predictor's error in logits (sd)",
        }[self]


@dataclass(frozen=True)
class Setting:
    """What is simulated."""

    budget: Budget
    pool: int
    population: Population
    predictor: NoisyPredictor

    @property
    def batch(self) -> int:
        """Flat groups that the budget pays for."""
        return int(self.budget.units) // self.budget.group_size


def simulate(
    arms: Annotated[str, typer.Option(help="Arms, separated by commas; the first one is the yardstick.")] = MAIN_ARMS,
    pool: Annotated[int | None, typer.Option(min=1, help="Candidate prompts; sets M where that is not given.")] = None,
    pool_factor: Annotated[
        float | None, typer.Option(help="Candidate prompts for each flat group that the budget pays for.")
    ] = None,
    root_units: Annotated[int | None, typer.Option("--root-units", "-m", min=2, help="M, factual rollouts.")] = None,
    continuations: Annotated[
        int, typer.Option("--continuations", "-n", min=0, help="N, continuations per factual rollout.")
    ] = 2,
    group_size: Annotated[int, typer.Option(min=2, help="G, rollouts per prompt of the flat arms.")] = 8,
    turns: Annotated[int | None, typer.Option(min=1, help="Turns of a rollout; 5, or as in the run.")] = None,
    mixed: Annotated[
        float | None, typer.Option(help="Share of the prompts whose flat groups hold both outcomes; 0.23.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Mean success rate; 0.5.")] = None,
    like: Annotated[str | None, typer.Option(metavar="RUN", help="Prompts and turns like those of a run.")] = None,
    noise: Annotated[float, typer.Option(help="Sd of the predictor's error in logits; 0 is perfect, inf blind.")] = 2.0,
    belief: Annotated[BeliefKind, typer.Option(help="What is made of a prediction.")] = BeliefKind.PLUG_IN,
    sweep: Annotated[Sweep | None, typer.Option(help="Vary M : N at equal units, the pool, or the noise.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeats; 10, fewer for large pools.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for a table (CSV) and a picture (SVG, PNG).")] = None,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")] = Path("runs"),
) -> None:
    """Simulate where each arm's budget would go, without a language model."""
    names = _checked_arms(arms)
    if like is not None and (mixed is not None or mean is not None):
        raise UserError("--like takes the prompts from a run: leave out --mixed and --mean")
    mixed, mean = 0.23 if mixed is None else mixed, 0.5 if mean is None else mean
    if not 0.0 < mean < 1.0:
        raise UserError(f"--mean={mean:g}: a mean success rate lies between 0 and 1")
    if not noise >= 0.0:
        raise UserError(f"--noise={noise:g}: a standard deviation is not negative")
    if out is not None:
        _make_folder(out)
    budget, size = _budget(pool, pool_factor, root_units, continuations, group_size)
    from components.simulation import NoisyPredictor, Population
    from components.simulation import sweep as grid

    population = (
        _like(like, runs_dir, turns) if like else Population.with_mixed_share(mixed, group_size, mean, turns or 5)
    )
    setting = Setting(budget, size, population, NoisyPredictor(noise, belief.value))
    points = _points(setting, sweep)
    repeats = seeds or max(1, min(10, MANY // max(point.pool for point in points.values())))
    _say(setting, repeats)
    cells: dict[str, list[Cell]] = {name: [] for name in names}
    with console.status("") as status:
        for name in names:
            for label, point in points.items():
                status.update(f"{name} {label}")
                one = ([name], [point.budget], [point.pool], [point.predictor], population, repeats, seed)
                cells[name] += grid(*one)
    from flows.simulated import conclusion, swept_table, table, write

    flat = [cell for mine in cells.values() for cell in mine]
    if sweep is None:
        console.print(table(flat, population.turns))
        console.print(conclusion(flat), highlight=False)
    else:
        console.print(swept_table(cells, list(points), sweep.label))
    if out is not None:
        stem = write(out, flat, None if sweep is None else (sweep.value, sweep.label, list(points)))
        console.print(f"Written: {stem}.csv, .svg, .png", highlight=False)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={path}: {error.strerror}") from error


def _checked_arms(text: str) -> list[str]:
    from components.allocation.arms import ARMS

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = [name for name, arm in ARMS.items() if arm.samples]
    for name in names:
        if name not in known:
            raise UserError(f"--arms: {name!r} is no arm that can be simulated; there is {', '.join(known)}")
    if not names:
        raise UserError(f"--arms={text!r} names no arm; there is {', '.join(known)}")
    return names


def _budget(pool: int | None, factor: float | None, root_units: int | None, n: int, group: int) -> tuple[Budget, int]:
    """The budget and the pool's size, from those of the options that were given."""
    from components.allocation.budget import Budget

    if factor is not None and not 0 < factor < float("inf"):
        raise UserError(f"--pool-factor={factor:g}: give a positive number")
    if None not in (pool, factor, root_units):
        raise UserError("--pool, --pool-factor and --root-units: the third follows from two; leave one out")
    if pool is not None and root_units is None:
        root_units = max(2, round(pool / (factor or 4.0) * group / (1 + n / 2)))
    budget = Budget(root_units or 1024, n, group)
    batch = int(budget.units) // group
    if batch < 1:
        raise UserError(f"a budget of {budget.units:g} units does not pay for one group of --group-size={group}")
    return budget, pool or max(1, round((factor or 4.0) * batch))


def _like(name: str, runs_dir: Path, turns: int | None) -> Population:
    from components.allocation.arms import ARMS
    from components.simulation import Population
    from components.simulation.observed import observed
    from tasks.run import find_run
    from tasks.store import is_there

    run = find_run(name, runs_dir)
    paths = (folder / "forest.parquet" for folder in sorted(run.path.glob("iterations/*"), reverse=True))
    forests = list(islice(filter(is_there, paths), RUN_ITERATIONS))[::-1]
    if not forests:
        raise UserError(f"{run.path} has no finished iteration: there are no success rates to read")
    successes, rollouts, seen_turns = observed(forests)
    population = Population.fitted(successes, rollouts, turns or seen_turns)
    console.print(f"Fitted to {len(rollouts)} prompts of the newest forests of {run.run_id}.", highlight=False)
    if ARMS[run.params.allocation.arm].uses_predictor:
        console.print(
            f"[yellow]Warning:[/] arm {run.params.allocation.arm} chose them by its predictor: the pool holds "
            "fewer mixed prompts than this. A run of grpo is a fair sample.",
            highlight=False,
        )
    return population


def _points(setting: Setting, sweep: Sweep | None) -> dict[str, Setting]:
    """The settings to simulate, by their label."""
    if sweep is Sweep.SHAPE:
        budgets = [
            replace(setting.budget, continuations=n, root_units=int(setting.budget.units / (1 + n / 2)))
            for n in (0, 1, 2, 3, 4, 6, 8)
        ]
        return {f"{budget.root_units}:{budget.continuations}": replace(setting, budget=budget) for budget in budgets}
    if sweep is Sweep.POOL:
        return {f"{k}": replace(setting, pool=k * setting.batch) for k in (1, 2, 4, 8, 16)}
    if sweep is Sweep.NOISE:
        sds = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, float("inf"))
        return {f"{sd:g}": replace(setting, predictor=replace(setting.predictor, noise=sd)) for sd in sds}
    return {"": setting}


def _say(setting: Setting, seeds: int) -> None:
    budget, population = setting.budget, setting.population
    console.print(
        f"{setting.pool:,} prompts, flat groups of {budget.group_size} mixed in "
        f"{population.mixed_share(budget.group_size):.1%}, mean success rate {population.mean:.2f}, "
        f"{population.turns} turns; M={budget.root_units:,}, N={budget.continuations}: {budget.units:,.0f} units; "
        f"predictor's logit error {setting.predictor.noise:g} ({setting.predictor.belief}); "
        f"{seeds} seed{'s' * (seeds > 1)}.",
        highlight=False,
    )
    if setting.pool < setting.batch:
        console.print(
            f"[yellow]Warning:[/] the budget pays for {setting.batch:,} flat groups, more than there are prompts: "
            "what they cannot take stays unspent.",
            highlight=False,
        )
