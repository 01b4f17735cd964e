"""Checkpoints in Hugging Face form: every reader of a policy's weights goes through here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from components.errors import UserError

transformers_logging.disable_progress_bar()  # weights are loaded several times an iteration

RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # what the output layer alone does not do


def load_model(policy: Path) -> Any:
    """A causal language model in fp32.

    Raises:
        UserError: if the checkpoint is missing or damaged, or of a kind that rescales its logits.
    """
    if not (policy / "config.json").is_file():
        raise UserError(f"{policy} holds no checkpoint (config.json is missing)")
    try:
        model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    except Exception as error:  # safetensors, JSON and configuration errors share no base class
        reason = str(error).splitlines()[0]
        raise UserError(f"{policy} is damaged ({reason}); delete it and run the same command again") from error
    for key in RESCALED:
        if (value := getattr(model.config, key, None)) not in (None, 1.0):
            raise UserError(
                f"{policy}: config.json has {key}={value}; models that rescale their logits are not supported"
            )
    return model
