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
        int | None, typer.Option(min=0, help="GPUs; 0 plans for this machine's CPU. Default: 8 for vllm and deepspeed.")
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
    from components.planning import make_cluster, model_of
    from components.planning import plan as make
    from components.policy.engines.vllm import VllmParams
    from components.policy.trainers.deepspeed import DeepSpeedParams
    from components.predictor.models.backbone import BackboneParams

    settings = load_params(params, dict(parse_assignment(text) for text in assignments or []))
    if rollout_tokens is not None and not 0 < rollout_tokens <= settings.engine.max_tokens:
        raise UserError(
            f"--rollout-tokens {rollout_tokens:g}: expected more than 0 and at most "
            f"engine.max_tokens={settings.engine.max_tokens}"
        )
    if gpu_memory is not None and gpu_memory <= 0:
        raise UserError(f"--gpu-memory {gpu_memory:g}: expected more than 0")
    on_gpus = isinstance(settings.engine, VllmParams) or isinstance(settings.update, DeepSpeedParams)
    cluster = make_cluster(gpus if gpus is not None else 8 * on_gpus, gpu, gpu_memory, settings.run.threads)
    policy = model_of(settings.policy.path, settings.policy)
    predictor = None
    if isinstance(settings.predictor, BackboneParams):
        own = settings.predictor.path
        predictor = model_of(own, settings.policy, "predictor.path") if own else policy
    made = make(settings, policy, predictor, cluster, rollout_tokens)
    if as_json:
        typer.echo(json.dumps(_json(made, policy.parameters, cluster), indent=1))
    else:
        _show(made, settings, policy.parameters, cluster)
    for problem in made.problems:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]Does not fit:[/] {escape(problem)}", highlight=False)
    raise typer.Exit(1 if made.problems else 0)


def _json(made: Plan, parameters: int, cluster: Cluster) -> dict[str, Any]:
    """The plan for tools: bytes, tokens, operations, seconds."""
    stages = [asdict(stage) | {"bytes": stage.bytes} for stage in made.stages]
    return asdict(made) | {
        "stages": stages,
        "seconds": made.seconds,
        "parameters": parameters,
        "cluster": asdict(cluster),
        "fits": not made.problems,
    }


def _show(made: Plan, settings: Params, parameters: int, cluster: Cluster) -> None:
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
        f"{parameters:,} parameters on {where} with {gigabytes(cluster.memory)}; {made.iterations} iterations of "
        f"{factual:,} factual rollouts and {further:,} continuations ({settings.allocation.arm})",
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
