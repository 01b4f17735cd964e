"""Checkpoints in Hugging Face form: every reader of a policy's weights goes through here."""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from components.errors import UserError
from components.storage import content_hash

transformers_logging.disable_progress_bar()  # weights are loaded several times an iteration

RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # what the output layer alone does not do


_loading = threading.RLock()  # the library sets the default type and device of the whole process meanwhile


def shared_model(policy: Path) -> Any:
    """The policy's model, for reading only: it stays in memory until another policy is asked for.

    Raises:
        UserError: as `load_model`.
    """
    with _loading:
        return _shared(policy, content_hash(policy))


@lru_cache(maxsize=1)
def _shared(policy: Path, content: str) -> Any:
    return load_model(policy).eval()


def load_model(policy: Path) -> Any:
    """A causal language model in fp32, with weights of its own.

    Raises:
        UserError: if the checkpoint is missing or damaged, or of a kind that the engine would not sample exactly.
    """
    if not (policy / "config.json").is_file():
        raise UserError(f"{policy} holds no checkpoint (config.json is missing)")
    try:
        with _loading:
            model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32, attn_implementation="sdpa")
    except Exception as error:  # safetensors, JSON and configuration errors share no base class
        reason = str(error).splitlines()[0]
        raise UserError(f"{policy} cannot be loaded: it is damaged, or of an unknown kind ({reason})") from error
    for key in RESCALED:
        if (value := getattr(model.config, key, None)) not in (None, 1.0):
            raise UserError(
                f"{policy}: config.json has {key}={value}; models that rescale their logits are not supported"
            )
    kinds = getattr(model.config, "layer_types", None)
    windowed = set(kinds) != {"full_attention"} if kinds else getattr(model.config, "sliding_window", None) is not None
    if windowed:
        raise UserError(f"{policy}: config.json asks for a sliding window; only full attention is supported")
    return model
