"""`trace plan`: what a run needs before a GPU is rented. Nothing heavy is imported before the command runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from components.errors import UserError

if TYPE_CHECKING:
    from components.params.root import Params
    from components.planning import Cluster, Plan

console = Console()


def plan(
    params: Annotated[Path, typer.Argument(help="Parameters file.")] = Path("params.yaml"),
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value; may be given several times.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, help="GPUs; 0 plans for this machine's CPU. Default: 8 for what computes on GPUs."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="A100, H100 or H200.")] = "H100",
    gpu_memory: Annotated[
        float | None, typer.Option(help="GB (1e9 bytes) of one GPU, or of this machine, if not as it is by default.")
    ] = None,
    rollout_tokens: Annotated[
        float | None, typer.Option(help="Mean tokens of a whole rollout; default: half of engine.max_tokens.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a run needs: memory, tokens, hours, disk, and whether it fits (exit code 1 if not)."""
    from components.params.load import load_params, parse_assignment
    from components.planning import make_cluster
    from components.planning import plan as make
    from components.policy.engines import ENGINES
    from components.policy.trainers import TRAINERS

    settings = load_params(params, dict(parse_assignment(text) for text in assignments or []))
    if rollout_tokens is not None and not 0 < rollout_tokens <= settings.engine.max_tokens:
        raise UserError(
            f"--rollout-tokens {rollout_tokens:g}: expected more than 0 and at most "
            f"engine.max_tokens={settings.engine.max_tokens}"
        )
    if gpu_memory is not None and gpu_memory <= 0:
        raise UserError(f"--gpu-memory {gpu_memory:g}: expected more than 0")
    on_gpu = ENGINES[settings.engine.name].layout(settings.engine).on_gpu
    on_gpu = on_gpu or TRAINERS[settings.update.name].layout(settings.update).on_gpu
    cluster = make_cluster(gpus if gpus is not None else 8 * on_gpu, gpu, gpu_memory, settings.run.threads)
    made = make(settings, cluster, rollout_tokens)
    if as_json:
        typer.echo(json.dumps(_json(made, cluster), indent=1))
    else:
        _show(made, settings, cluster)
    for problem in made.problems:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]Does not fit:[/] {escape(problem)}", highlight=False)
    raise typer.Exit(1 if made.problems else 0)


def _json(made: Plan, cluster: Cluster) -> dict[str, Any]:
    """The plan for tools: bytes, tokens, operations, seconds."""
    stages = [asdict(stage) | {"bytes": stage.bytes} for stage in made.stages]
    return asdict(made) | {
        "stages": stages,
        "seconds": made.seconds,
        "parameters": made.policy.parameters,
        "cluster": asdict(cluster),
        "fits": not made.problems,
    }


def _show(made: Plan, settings: Params, cluster: Cluster) -> None:
    from components.planning import gigabytes

    factual, further = made.rollouts
    table = Table("stage", box=None)
    for heading in ("devices", "memory of one", "of which", "tokens", "PFLOP", "hours in all"):
        table.add_column(heading, justify="left" if heading == "of which" else "right")
    for stage in made.stages:
        parts = sorted(((size, part) for part, size in stage.memory.items() if size > 0), reverse=True)
        table.add_row(
            stage.name,
            str(stage.devices) if stage.devices else "host",
            gigabytes(stage.bytes) if parts else "",
            ", ".join(f"{part} {gigabytes(size)}" for size, part in parts),
            f"{stage.tokens:,.0f}" if stage.tokens else "",
            f"{stage.flops / 1e15:,.3g}" if stage.flops else "",
            f"{made.iterations * stage.seconds / 3600:,.3g}",
        )
    where = "this machine's CPU" if cluster.is_cpu else f"{cluster.devices} × {cluster.name}"
    lines = [
        f"{made.policy.parameters:,} parameters on {where} with {gigabytes(cluster.memory)}; "
        f"{made.iterations} iterations of {factual:,} factual rollouts and {further:,} continuations "
        f"({settings.allocation.arm})",
        f"Memory for rollouts of {settings.engine.max_tokens:,} tokens; tokens and time for {made.rollout_tokens:,.0f} "
        "in the mean (--rollout-tokens)",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(table)
    total = made.iterations * made.tree_tokens
    disk = ", ".join(f"{what} {gigabytes(size)}" for what, size in made.disk.items())
    lines = [
        f"In all: {made.seconds / 3600:,.3g} hours, {total:,.0f} tokens in trees; an iteration's trees have "
        f"{made.tree_tokens:,.0f}, all their paths {made.path_tokens:,.0f}; on disk: {disk}",
        *(f"Note: {note}" for note in made.notes),
        *(["It fits."] if not made.problems else []),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
