"""The tiny policy's warm-up: supervised learning on generated demonstrations, cached by the hash of its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from components.environments.base import Environment, Prompt
from components.environments.generated import GeneratedEnvironment
from components.errors import UserError
from components.policy.base import PolicyParams
from components.policy.checkpoint import save_model
from components.policy.renderer import Renderer
from components.policy.tiny import build_model, build_tokenizer
from components.storage import atomic_path, content_hash, read_json, value_hash, write_json

SEAL = ".sha256.json"  # hidden, so that it is no part of the hash in it
logger = logging.getLogger("trace")


def warm_up(
    settings: PolicyParams,
    environment: GeneratedEnvironment,
    root: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Path:
    """Trains the tiny policy, or finds it in the cache.

    Args:
        settings: Size and recipe.
        environment: The task.
        root: Folder of all warmed-up policies.
        progress: Called with the steps done and their number.

    Returns:
        Folder with the checkpoint in Hugging Face form.
    """
    recipe = settings.warmup
    task = environment.name
    folder = root / task / value_hash({"task": task, **settings.model_dump(exclude={"path"})})[:12]
    if folder.exists():
        if _is_whole(folder):
            return folder
        logger.warning("%s is damaged; the policy is warmed up anew", folder)
    tokenizer = build_tokenizer(environment.vocabulary())
    renderer = Renderer(tokenizer)
    model = build_model(settings, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20, (recipe.steps - step) / (0.5 * recipe.steps))
    )
    rng = np.random.default_rng(recipe.seed)
    stream = environment.generate(rng, recipe.hops, recipe.zipf)
    examples = [demonstrate(environment, next(stream), renderer) for _ in range(recipe.steps * recipe.batch_size)]
    examples.sort(key=lambda example: len(example[0]))  # batches of equal length need no padding; their order is random
    for step, batch in enumerate(rng.permutation(recipe.steps)):
        ids, labels = _batch(examples[batch * recipe.batch_size : (batch + 1) * recipe.batch_size])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(step + 1, recipe.steps)
    with atomic_path(folder) as temporary:
        save_model(model, temporary)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / SEAL, content_hash(temporary))
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        return bool(read_json(folder / SEAL) == content_hash(folder))
    except UserError:
        return False


def demonstrate(environment: Environment, prompt: Prompt, renderer: Renderer) -> tuple[list[int], list[bool]]:
    """Token ids of the gold path, and which of them the policy would have to sample."""
    ids = renderer.prompt_ids(environment.chat(prompt))
    is_action = [False] * len(ids)
    state = environment.reset(prompt)
    for action in environment.solve(prompt):
        transition = environment.step(state, action)
        turn = [*renderer.tokenizer(action, add_special_tokens=False)["input_ids"], renderer.eos_id]
        seen = [] if transition.observation is None else renderer.observation_ids(transition.observation)
        ids += [*turn, *seen]
        is_action += [True] * len(turn) + [False] * len(seen)
        state = transition.state
    return ids, is_action


def _batch(examples: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded token ids and labels, both (B, T); -100 where nothing is learned. Padding is never attended to."""
    width = max(len(ids) for ids, _ in examples)
    tokens = torch.zeros(len(examples), width, dtype=torch.long)
    labels = torch.full((len(examples), width), -100)
    for row, (ids, is_action) in enumerate(examples):
        tokens[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.where(torch.tensor(is_action), torch.tensor(ids), -100)
    return tokens, labels
