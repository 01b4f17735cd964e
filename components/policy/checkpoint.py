"""Checkpoints in Hugging Face form: every reader and writer of a policy's weights goes through here.

The library's modelling code takes many seconds to import, so it is imported where a model is read or written.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import UserError
from components.storage import content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_loading = threading.RLock()  # while a model is read, the library sets the default type and device of the whole process

# A checkpoint is data: no pickle is opened, no code in it is run, and nothing is fetched.
TRUST: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # what the output layer alone does not do


def load_model(policy: Path) -> Any:
    """A causal language model in fp32, with weights of its own, from safetensors alone.

    Raises:
        UserError: if the checkpoint is missing, damaged or incomplete, holds NaN, or is of a kind that the engine would
            not sample exactly.
    """
    if not (policy / "config.json").is_file():
        raise UserError(f"{policy} holds no checkpoint (config.json is missing)")
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # weights are loaded several times a run
    try:
        _check_files(policy)
        with _loading:
            model, loaded = AutoModelForCausalLM.from_pretrained(
                policy, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True,
                use_safetensors=True, **TRUST,
            )  # fmt: skip
    except Exception as error:  # safetensors, JSON and configuration errors share no base class
        reason = str(error).splitlines()[0]
        raise UserError(f"{policy} cannot be loaded: it is damaged, or of an unknown kind ({reason})") from error
    if missing := sorted(loaded["missing_keys"]):  # the library would fill them with random numbers
        raise UserError(f"{policy}: the checkpoint lacks {len(missing)} weights, the first {missing[0]}")
    if bad := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        raise UserError(f"{policy}: {len(bad)} weights hold NaN or infinities, the first {bad[0]}")
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


def _check_files(policy: Path) -> None:
    """Raises `ValueError` where the library would open other files than safetensors of this folder."""
    if (policy / "adapter_config.json").exists():
        raise ValueError("it holds an adapter; merge it into its model first")
    index = policy / "model.safetensors.index.json"
    if index.exists():
        for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values():
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ValueError(f"{index.name} names {name!r}, which is no safetensors file beside it")


def load_tokenizer(policy: Path) -> PreTrainedTokenizerBase:
    """A checkpoint's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(policy, **TRUST)
    return tokenizer


def ids_of(value: int | list[int] | None) -> list[int]:
    """Token ids as a configuration gives them: one, several or none."""
    return [value] if isinstance(value, int) else list(value or ())


_shared: dict[str, Any] = {}  # content of a checkpoint -> its model; one at most


def shared_model(policy: Path) -> Any:
    """The model of a checkpoint for those who only read it: kept until another content is asked for.

    Sampling and scoring use the same weights several times an iteration. Who changes a model takes a copy of its own
    from `load_model`.
    """
    from components.policy.engines.transformers import attention

    content = content_hash(policy)
    with _loading:
        if content not in _shared:
            _shared.clear()  # before the next one is read: two would need twice the memory
            model = load_model(policy).eval().requires_grad_(False)
            model.set_attn_implementation(attention.NAME)  # for all readers, so that none sees who else reads
            _shared[content] = model
        return _shared[content]


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Writes a model's weights and configuration; options as for its `save_pretrained`."""
    from transformers import modeling_utils

    # None is wrapped here, and looking for wrappers when a model is saved imports DeepSpeed, which takes seconds.
    modeling_utils.unwrap_model = lambda model: model
    model.save_pretrained(folder, **options)
