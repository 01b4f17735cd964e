"""A look, once, whether a model sees a packed tree as it sees the rows: else it is trained on rows.

Packing needs a model that takes positions from `position_ids` and attends through the interface of `transformers`.
Most do; one that does not would train on wrong log-probabilities without a word.

The look proves something only where the mask matters. So it takes paths that part from each other within a tree, and
looks at the tokens whose log-probability would change if every token saw all tokens before it. A forest without such
tokens decides nothing: it is trained on rows, and the next one is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from components.policy.packing.batches import build_rows, collate, pack
from components.policy.packing.rows import Row, split
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.learner import Learner
from components.policy.trainers.loss import term_logprobs
from components.tree.forest import Forest
from components.tree.terms import Terms

# Of the difference of a log-probability, packed against flat, relative to max(1, its size); always in fp32.
MEAN, TAIL = 1e-4, 1e-3  # most that the mean, and the quantile .99, may be
AT_STAKE = 10 * TAIL  # least difference that a plain causal mask makes at the tokens that are looked at
TREES, PATHS = 4, 3  # paths of each tree that are looked at, the shortest ones

logger = logging.getLogger("trace")
_known: dict[str, bool] = {}  # by kind of model: once in a process


def choose_packing(
    learner: Learner, forest: Forest, terms: Terms, settings: UpdateParams, temperature: float
) -> tuple[UpdateParams, dict[str, float]]:
    """Settings whose `packing` is no longer auto, and the metric `packed`: whether trees are."""
    model, packed = learner.model, settings.packing != "flat"
    kind = f"{type(model).__name__} {model.device.type} {model.config.to_json_string()}"
    if settings.packing == "auto" and len(terms):
        if kind not in _known:
            parts = parts_to_look_at(forest, build_rows(forest, terms), settings.micro_batch_tokens)
            for _ in range(2):  # ZeRO-3 in bf16 rounds small weights the first times that it gathers them
                # one process decides for all: in each of them the number may fall on another side of a bound
                right, reason = learner.of_first(learner.within(lambda model: sees_trees(model, parts, temperature)))
                if right is not False:
                    break
            _tell(type(model).__name__, right, reason)
            if right is not None:
                _known[kind] = right
        packed = _known.get(kind, False)
    elif settings.packing == "tree" and not _known.get(kind):
        logger.warning("update.packing=tree: nobody looks whether %s sees packed trees rightly", type(model).__name__)
        _known[kind] = True  # once said is enough
    if not packed and model.config._attn_implementation != "sdpa":
        model.set_attn_implementation("sdpa")
    return settings.model_copy(update={"packing": "tree" if packed else "flat"}), {"packed": float(packed)}


def _tell(model: str, right: bool | None, reason: str) -> None:
    if right:
        logger.info("trees are packed, each shared token is computed once (%s: %s)", model, reason)
    elif right is None:
        logger.info("flat rows: whether %s sees packed trees rightly is not decided yet (%s)", model, reason)
    else:
        logger.warning("%s cannot be trained on packed trees (%s); flat rows instead", model, reason)


def parts_to_look_at(forest: Forest, rows: list[Row], limit: int) -> list[list[Row]]:
    """Parts as they would be packed, of some paths of several trees, each of them with other inputs."""
    by_tree: dict[int, dict[bytes, Row]] = {}
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        by_tree.setdefault(int(forest.tree_N[row.leaf]), {}).setdefault(row.token_ids[:-1].tobytes(), row)
    several = [list(paths.values())[:PATHS] for paths in by_tree.values() if len(paths) > 1]
    several.sort(key=lambda paths: len(paths[1].token_ids))
    parts = split([row for paths in several[:TREES] for row in paths], limit) if several else []
    return [part for part in parts if len(part) > 1]


def sees_trees(model: Any, parts: list[list[Row]], temperature: float) -> tuple[bool | None, str]:
    """Whether the model gives packed trees the log-probabilities of the rows, None if that is not decided; and why."""
    rows = [collate([row]).to(model.device) for part in parts for row in part]
    with torch.no_grad(), torch.autocast(model.device.type, enabled=False):  # rounding to bf16 would hide what differs
        flat = _joined(term_logprobs(model, row, temperature) for row in rows)
        try:
            trees = [pack(part).to(model.device) for part in parts]
            packed = _joined(term_logprobs(model, tree, temperature) for tree in trees)
            causal = _joined(
                term_logprobs(model, replace(tree, end_T=torch.full_like(tree.end_T, len(tree.end_T))), temperature)
                for tree in trees
                if tree.end_T is not None
            )
        except Exception as error:  # models fail in kinds of their own when they are called in a way they do not know
            return False, str(error).splitlines()[0]
    scale = flat.abs().clamp(min=1)
    at_stake = ((causal - flat).abs() / scale).nan_to_num(nan=0.0) > AT_STAKE
    if not at_stake.any():
        return None, "no token of this forest's paths depends on the mask"
    off = ((packed - flat).abs() / scale).nan_to_num(nan=torch.inf)
    mean, tail = (max(float(of(x)) for x in (off, off[at_stake])) for of in (torch.mean, lambda x: x.quantile(0.99)))
    if mean <= MEAN and tail <= TAIL:
        return True, f"checked on {int(at_stake.sum())} tokens, mean difference {mean:.1g}"
    return False, f"log-probabilities differ by {mean:.2g} in the mean"


def _joined(logprobs: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(each.float().cpu() for each in logprobs)])
