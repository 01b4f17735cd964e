"""The command `trace`.

Heavy packages are imported only where a command needs them, and Prefect and MLflow read their settings from the
environment when they are imported: `main` sets it first.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from components.errors import UserError
from components.secrets import masked
from flows.compare import compare
from flows.new import new
from flows.plan import plan
from flows.show import report, view
from flows.simulate import simulate

app = typer.Typer(
    help="TRACE: reinforcement learning of language-model agents that decides where to spend rollouts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

ParamsOption = Annotated[Path, typer.Option("--params", help="Parameters file.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="section.key=value; may be given several times.")]
RunsOption = Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")]


@app.command()
def train(
    params: ParamsOption = Path("params.yaml"),
    assignments: SetOption = None,
    arm: Annotated[str | None, typer.Option(help="Allocation arm, e.g. trace or grpo.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run; that of an unfinished run continues it.")] = None,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Replace a finished run of this name, or one of other parameters; continue one that was interrupted.",
        ),
    ] = False,
) -> None:
    """Train a policy, or continue a run."""
    from components.params.load import load_params, parse_assignment
    from flows import services
    from flows.progress import Display, show_summary
    from flows.temporary_server import ServerLost, prefect_api
    from tasks.run import open_run

    overrides: dict[str, Any] = dict(parse_assignment(text) for text in assignments or [])
    overrides |= {k: v for k, v in (("allocation.arm", arm), ("run.seed", seed)) if v is not None}
    settings = load_params(params, overrides)
    name = run_id or f"{settings.allocation.arm}-s{settings.run.seed}-{datetime.now():%m%d-%H%M%S}"
    run = open_run(settings, name, anew)
    go_on = f"trace {shlex.join(sys.argv[1:])}" + ("" if run_id else f" --run-id {name}")
    console.print(f"Run {name}. Ctrl-C stops it; to continue it: {go_on}", highlight=False, soft_wrap=True)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # this command has a display of its own
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_TRACKING_URI", services.mlflow_uri(Path.cwd()))
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")  # else tracebacks while a server is away
    logging.raiseExceptions = False  # nor word of each log line that such a server did not get
    for name_of_logger in ("trace", "flows"):
        logging.getLogger(name_of_logger).addHandler(_Warnings(logging.WARNING))
    with (
        _interruptible(go_on),
        Display(console, settings) as display,
        prefect_api(Path.cwd()) as api,
    ):
        display.stage("starting", 0, 0)
        from flows.train import trace
        from tasks.stage import listeners

        listeners.append(display)
        try:
            if settings.run.store is None:  # else a warmed-up policy may lie there
                _warm_up_meanwhile(run)
            api.wait()
            trace(params=str(run.path / "params.yaml"), run_id=name)
        except Exception as error:
            if not api.is_to_blame(error):
                raise
            raise ServerLost(
                f"the Prefect server at {api.url} failed ({type(error).__name__}); "
                f"what was sampled is kept in {_shown(run.path)}; to continue: {go_on}"
            ) from error
        finally:
            listeners.remove(display)
    from components.storage import read_json

    show_summary(console, read_json(run.path / "summary.json"), _shown(run.path))


@app.command()
def evaluate(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Run id, path, URL in a store, or 'latest'.")],
    samples: Annotated[int, typer.Option(min=1, help="Rollouts per prompt.")] = 4,
    runs_dir: RunsOption = Path("runs"),
) -> None:
    """Sampled accuracy of a run's newest policy on the test prompts, beside that of the policy it started from."""
    from tasks.run import find_run

    run = find_run(name, runs_dir)
    from components.build import make_sampler
    from tasks.evaluate import accuracy
    from tasks.prepare import policy_of_start
    from tasks.summary import finished_iterations

    done = finished_iterations(run)
    start = policy_of_start(run)
    policies = [("the policy that the run started from", 0, start)] + (
        [(f"after {done} iterations", done, run.iteration(done - 1) / "policy")] if done else []
    )
    for when, version, path in policies:
        result = accuracy(
            make_sampler(run.params, path, version), run.params, "test", samples, seed=run.params.run.seed
        )
        graded = f", mean reward {result['mean_reward']:.3f}" if result["mean_reward"] != result["accuracy"] else ""
        console.print(
            f"{when}: accuracy {result['accuracy']:.3f}{graded} over {result['rollouts']:.0f} rollouts",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def prepare(
    task: Annotated[str, typer.Argument(help="Registered environment, e.g. multihop.")],
    params: ParamsOption = Path("params.yaml"),
    assignments: SetOption = None,
) -> None:
    """Write the data set of a task: its splits as Parquet, and a card."""
    from components.build import environment_of
    from components.environments.dataset import prepare as write
    from components.params.load import load_params, parse_assignment
    from components.storage import read_json

    overrides: dict[str, Any] = dict(parse_assignment(text) for text in assignments or [])
    settings = load_params(params, overrides | {"environment.name": task})
    root = Path(settings.run.data_dir)
    folder = write(environment_of(settings.environment, (root / "cache").absolute()), root)
    card = read_json(folder / "card.json")
    sizes = ", ".join(f"{facts['prompts']:,} {split}" for split, facts in card["splits"].items())
    console.print(f"{folder}: {sizes} prompts, from {card['source']}; hash {card['data_hash'][:16]}", highlight=False,
                  soft_wrap=True)  # fmt: skip


@app.command(name="warm-up")
def warm_up(params: ParamsOption = Path("params.yaml"), assignments: SetOption = None) -> None:
    """Train the tiny policy on demonstrations, as runs start from it; found again by its settings."""
    from components.params.load import load_params, parse_assignment

    Path(os.environ.get("PREFECT_HOME", ".")).mkdir(parents=True, exist_ok=True)  # before Prefect looks for it
    from tasks.prepare import start_policy

    settings = load_params(params, dict(parse_assignment(text) for text in assignments or []))
    if settings.policy.path is not None:
        raise UserError(f"{params}: policy.path={settings.policy.path}: a checkpoint of your own is not warmed up")
    console.print(_shown(start_policy(settings)), highlight=False, soft_wrap=True)


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
) -> None:
    """Start the Prefect and MLflow servers, the deployment trace/train and its worker, on loopback."""
    from flows import services

    services.up(Path.cwd(), prefect_port, mlflow_port)


@app.command()
def down() -> None:
    """Stop exactly what `trace up` started."""
    from flows import services

    services.down(Path.cwd())


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing for which feature, and which servers are up."""
    from flows.doctor import examine

    raise typer.Exit(0 if examine(console) else 1)


app.command()(simulate)
app.command()(compare)
app.command()(new)
app.command()(view)
app.command()(report)
app.command()(plan)


@contextmanager
def _interruptible(go_on: str) -> Iterator[None]:
    """Ends the command with code 130 and a word on how to continue, once Ctrl-C was pressed.

    The KeyboardInterrupt itself need not arrive here: libraries on its way turn it into errors of their own.
    """
    pressed = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        if stages := sys.modules.get("tasks.stage"):
            stages.stopping.set()  # should a library swallow the KeyboardInterrupt, the stage ends at its next report
        raise KeyboardInterrupt

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.SIG_IGN:  # as it is under nohup
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException:
        if not pressed:
            raise
        console.print(f"Stopped. To continue: {go_on}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, previous)


class _Warnings(logging.Handler):
    """Shows warnings of the run above its progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        console.print(f"[yellow]Warning:[/] {_printable(record.getMessage())}", highlight=False, soft_wrap=True)


def _warm_up_meanwhile(run: Any) -> None:
    """Makes data and policy while the Prefect server starts; the flow's tasks then find them."""
    from tasks.prepare import prepare_data, warm_up_policy

    prepare_data.fn(run.path)
    warm_up_policy.fn(run.path)


def _printable(text: str) -> str:
    """Without secrets, and with bytes of file names that are no text escaped: a terminal refuses them."""
    return escape(masked(text).encode("utf-8", "backslashreplace").decode())


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> None:
    """Runs the command; what the user can mend is one line and exit code 2."""
    from flows import services
    from flows.temporary_server import ServerLost

    os.environ.update(services.environment(Path.cwd()))
    try:
        app()
    except UserError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]Error:[/] {_printable(str(error))}", highlight=False)
        if isinstance(error, ServerLost):
            sys.stdout.flush()
            os._exit(2)  # an ordinary exit tries for 10 s to send each of Prefect's events
        sys.exit(2)


if __name__ == "__main__":
    main()
