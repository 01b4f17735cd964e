"""Prepare: the data set and the policy that a run starts from; each is made once, and found again by its settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from components.build import environment_of, make_environment, use_threads
from components.environments.base import Chat, Environment, Prompt
from components.environments.dataset import SPLITS
from components.environments.generated import GeneratedEnvironment
from components.errors import UserError
from components.params.root import Params
from components.storage import atomic_path, content_hash, read_json
from tasks.inputs import data_folder, prompts
from tasks.run import Run
from tasks.stage import listeners, read_stages
from tasks.store import has_hash, store_of


@task(name="prepare data", task_run_name="prepare data", cache_policy=NO_CACHE, persist_result=False)
def prepare_data(run_path: Path) -> Path:
    """Returns the folder of the data set, and refuses a run that was begun on other data.

    Raises:
        UserError: if the data are not those that the run began on, or are fewer prompts than the pool needs.
    """
    run = Run(run_path)
    params = run.params
    make_environment(params)  # so that what it lacks is reported now, not after the first rollouts
    folder = data_folder(params).absolute()
    began = run.manifest.get("data")
    made = f"{folder.name} ({data_hash(folder)[:12]})"
    if began is None:
        run.note(data=made)
    elif began not in (made, folder.name):
        raise UserError(
            f"run {run.run_id} began on the data set {began}, but its files now make {made}; "
            "restore them, or choose another --run-id"
        )
    available = read_json(folder / "card.json")["splits"]["train"]["prompts"]
    if params.allocation.pool > available:
        raise UserError(f"allocation.pool={params.allocation.pool} is larger than the {available} prompts of {folder}")
    return folder


@task(name="warm up policy", task_run_name="warm up policy", cache_policy=NO_CACHE, persist_result=False)
def warm_up_policy(run_path: Path) -> Path:
    """Returns the folder of the checkpoint that the run starts from: the user's own, or the tiny policy.

    Raises:
        UserError: if it is not the one that the run began on, or its template or limits do not fit the prompts.
    """
    run = Run(run_path)
    policy = policy_of_start(run)
    began = run.manifest.get("policy")
    if began is None or "record" not in read_stages(run.iteration(0)):  # only iteration 0 reads it
        now = content_hash(policy)
        if began not in (None, now):
            raise UserError(
                f"run {run.run_id} began on another policy than {policy} is now; restore it, or choose another --run-id"
            )
        run.note(policy=now)
    check_prompts(run, policy)
    return policy


def policy_of_start(run: Run) -> Path:
    """The policy that the run started from.

    A run in a store holds a copy of the tiny policy: training it again gives the same bits only on the same hardware.

    Raises:
        UserError: if that copy is damaged, and training it again here gives other bits.
    """
    kept, began = run.path / "start", run.manifest.get("outputs", {}).get("start")
    if run.params.policy.path is not None or (began is None and store_of(run.path) is None):
        return start_policy(run.params)
    if began is None or not has_hash(kept, began):
        with atomic_path(kept) as temporary:
            shutil.copytree(start_policy(run.params), temporary)
        made = content_hash(kept)
        if began not in (None, made):
            raise UserError(f"{kept} is damaged, and the policy that was trained again here differs; restore it")
        run.note(outputs={"start": made})
    return kept


def start_policy(params: Params) -> Path:
    """The user's own checkpoint, or the tiny policy, which is trained now if it is not in the cache."""
    if params.policy.path is not None:
        return Path(params.policy.path).absolute()
    from components.policy.warmup import warm_up

    use_threads(params)

    def progress(done: int, total: int) -> None:
        for listener in listeners:
            listener.stage("warm_up_policy", done, total)

    root = Path(params.run.data_dir)
    environment = environment_of(params.environment, root / "cache")
    assert isinstance(environment, GeneratedEnvironment), "`open_run` refuses the others without a checkpoint"
    return warm_up(params.policy, environment, root / "warmup", progress).absolute()


def check_prompts(run: Run, policy: Path) -> None:
    """Notes the length of the longest prompt of all splits in the manifest; once a run, as prompts and limits stay.

    Raises:
        UserError: if the environment cannot begin a prompt, the chat template cannot show one, or some leave no room
            for a turn; the message says how many.
    """
    if "longest_prompt" in run.manifest:
        return
    from components.policy.renderer import Renderer

    params = run.params
    renderer, environment = Renderer.load(policy), make_environment(params)
    given = (prompt for split in SPLITS for prompt in prompts(params, split).values())
    tokens_P = np.fromiter((len(renderer.prompt_ids(_begin(environment, prompt))) for prompt in given), dtype=np.int64)
    if too_long := int((tokens_P >= params.engine.max_tokens).sum()):
        ids = [prompt_id for split in SPLITS for prompt_id in prompts(params, split)]
        raise UserError(
            f"engine.max_tokens={params.engine.max_tokens} leaves no room for a turn after {too_long} of the "
            f"{len(ids)} prompts; the longest, {ids[tokens_P.argmax()]}, has {tokens_P.max()} tokens"
        )
    run.note(longest_prompt=int(tokens_P.max()))


def _begin(environment: Environment, prompt: Prompt) -> Chat:
    """The prompt's chat, after a check that the environment can be reset to it."""
    try:
        environment.reset(prompt)
        if isinstance(chat := environment.chat(prompt), Chat):
            return chat
        raise TypeError(f"chat gives a {type(chat).__name__}")
    except Exception as error:  # an environment may raise anything
        name = type(environment).__name__
        raise UserError(f"{name} cannot begin prompt {prompt.prompt_id}: {type(error).__name__}: {error}") from error


def data_hash(folder: Path) -> str:
    """A hash of a data set's contents."""
    return str(read_json(folder / "card.json")["data_hash"])
