"""A look, once, whether a model sees a packed tree as it sees the rows: else it is trained on rows.

Packing needs a model that takes positions from `position_ids` and attends through the interface of `transformers`.
Most do; one that does not would train on wrong log-probabilities without a word.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from components.policy.packing.batches import build_rows, collate, pack
from components.policy.packing.rows import split
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import score
from components.tree.forest import Forest
from components.tree.terms import Terms

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of a log-probability, relative to max(1, its size)
COARSE = 5e-2  # the same in half precision

logger = logging.getLogger("trace")
_known: dict[str, float] = {}  # by kind of model: once in a process


def choose_packing(
    model: Any, forest: Forest, terms: Terms, settings: UpdateParams, temperature: float
) -> tuple[UpdateParams, dict[str, float]]:
    """Settings whose `packing` is no longer auto, and the metric `packed`: whether trees are.

    The difference itself is no metric: it belongs to the first batch of a process, so a continued run has another one.
    """
    if settings.packing != "auto" or not len(terms):
        return settings, {"packed": float(settings.packing != "flat")}
    kind = f"{type(model).__name__} {model.device.type} {model.dtype} {settings.dtype} {model.config.to_json_string()}"
    if kind not in _known:
        _known[kind] = packed_difference(model, forest, terms, settings, temperature)
    packed = _known[kind] <= _tolerance(model, settings)
    return settings.model_copy(update={"packing": "tree" if packed else "flat"}), {"packed": float(packed)}


def packed_difference(model: Any, forest: Forest, terms: Terms, settings: UpdateParams, temperature: float) -> float:
    """Largest difference of a log-probability, packed against flat, over the first rows of the first batch."""
    rows = split(build_rows(forest, terms), settings.micro_batch_tokens)[0]
    fit = settings.micro_batch_tokens // max(len(row.token_ids) for row in rows)
    rows = rows[: max(2, fit)]
    with torch.no_grad():
        flat = score(model, collate(rows).to(model.device), temperature)
        try:
            packed = score(model, pack(rows).to(model.device), temperature)
            difference = float(((packed - flat).abs() / flat.abs().clamp(min=1)).nan_to_num(nan=torch.inf).max())
            reason = f"log-probabilities differ by {difference:.2g}"
        except Exception as error:  # models fail in kinds of their own when they are called in a way they do not know
            difference, reason = torch.inf, str(error).splitlines()[0]
    if difference > _tolerance(model, settings):
        logger.warning("%s cannot be trained on packed trees (%s); flat rows instead", type(model).__name__, reason)
        if model.config._attn_implementation != "sdpa":
            model.set_attn_implementation("sdpa")
    return difference


def _tolerance(model: Any, settings: UpdateParams) -> float:
    return COARSE if settings.dtype == "bf16" else TOLERANCE.get(model.dtype, COARSE)
