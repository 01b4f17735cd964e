"""Checkpoints in Hugging Face form: every reader and writer of a policy's weights goes through here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, modeling_utils
from transformers.utils import logging as transformers_logging

from components.errors import UserError

transformers_logging.disable_progress_bar()  # weights are loaded several times an iteration
modeling_utils.unwrap_model = lambda model: (
    model
)  # none is wrapped here; looking for wrappers imports DeepSpeed: seconds

RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # what the output layer alone does not do


def load_model(policy: Path) -> Any:
    """A causal language model in fp32.

    Raises:
        UserError: if the checkpoint is missing or damaged, or of a kind that the engine would not sample exactly.
    """
    if not (policy / "config.json").is_file():
        raise UserError(f"{policy} holds no checkpoint (config.json is missing)")
    try:
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


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Writes a model's weights and configuration; options as for its `save_pretrained`."""
    model.save_pretrained(folder, **options)
