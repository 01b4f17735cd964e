"""Pages of a run: its report, and the trees of an iteration. Needs neither Prefect nor the model libraries."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from components.environments.base import Prompt
from components.errors import UserError
from components.params.root import Params
from components.storage import read_sealed, write_text
from components.tracking.run_report import Digest, run_report
from components.tracking.viewer import Decode, forest_page
from components.tree.forest import Forest
from tasks.inputs import prompts, read_forest
from tasks.run import Run
from tasks.store import is_there

logger = logging.getLogger("trace")


def write_report(run: Run, output: Path | None = None) -> Path:
    """Writes the page of the run's finished iterations, by default into the run; reads one forest after the other.

    Raises:
        UserError: if no iteration has finished, or a file of the run is damaged.
    """
    lines = run.metrics()
    if not lines:
        raise UserError(f"run {run.run_id} has no finished iteration yet")
    train, digests = _train(run.params), []
    for number in (line["iteration"] for line in lines):
        if is_there(path := run.iteration(number) / "forest.parquet"):
            forest = read_forest(path)
            digests.append(Digest.of(number, forest, _gold(forest, train)))
    path = output or run.path / "report.html"
    accuracy = run.accuracy_after(len(lines))
    write_text(path, run_report(run.run_id, run.params, lines, accuracy, digests, _about(run, len(lines) - 1)))
    return path


def write_trees(
    run: Run, iteration: int, forest: Forest, output: Path | None = None, others: Sequence[tuple[int, str]] = ()
) -> Path:
    """Writes the page of an iteration's trees, by default beside its forest.

    Args:
        run: The run.
        iteration: Number of the iteration.
        forest: Its forest.
        output: Where the page goes.
        others: Numbers and addresses of the pages of other iterations.
    """
    path = output or run.iteration(iteration) / "trees.html"
    title, gold = f"Run {run.run_id}, iteration {iteration}", _gold(forest, _train(run.params))
    write_text(path, forest_page(title, forest, gold, _decoder(run), others))
    return path


def commit() -> str | None:
    """The commit of the folder that the command runs in; None where it is no git repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _train(params: Params) -> Mapping[str, Prompt]:
    """The training prompts by id; none, with a warning, where the data set is not on this machine."""
    folder = Path(params.run.data_dir) / params.environment.name
    try:
        if folder.is_dir():  # else reading it would make the data set
            return prompts(params, "train")
        logger.warning("there is no data set in %s: pages do not show gold answers", folder)
    except (UserError, ImportError) as error:
        logger.warning("pages do not show gold answers: %s", error)
    return {}


def _gold(forest: Forest, train: Mapping[str, Prompt]) -> dict[str, str]:
    """Gold answers of a forest's prompts by id."""
    ids = {node.prompt_id for node in forest.nodes if node.parent_id < 0}
    return {prompt_id: train[prompt_id].answer for prompt_id in ids & train.keys()}


def _about(run: Run, last: int) -> list[tuple[str, str]]:
    """When the run began and ended, and the commit that it ran on."""
    times = []
    for number, stage in ((0, "score_prompts"), (last, "record")):
        try:
            entry = read_sealed(run.iteration(number) / "manifest.json")[stage]
            times.append(f"{datetime.fromtimestamp(entry['began']):%Y-%m-%d %H:%M}")
        except (UserError, KeyError):
            times.append("–")
    return [("from, to", " – ".join(times)), ("commit", run.manifest.get("commit") or "–")]


def _decoder(run: Run) -> Decode | None:
    """Text of token ids by the tokenizer of a policy of the run; None where none is at hand."""
    from tokenizers import Tokenizer

    kept = sorted(run.path.glob("iterations/*/policy/tokenizer.json"), reverse=True)
    own = [Path(run.params.policy.path) / "tokenizer.json"] if run.params.policy.path else []
    for path in (*kept, *own):
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # whatever the library raises at a damaged or missing file
            logger.warning("%s: pages do not show tokens (%.100s)", path, error)
            continue
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
    return None
