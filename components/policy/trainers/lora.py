"""Low-rank adapters by peft (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022).

A policy that was trained so holds three checkpoints: the merged one, which every reader loads like any other;
`adapter/`, in peft's form; and `base/`, the weights that the adapter belongs to, as links where the file system has
them. The next step starts from the last two: taking the adapter out of the merged weights would round them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from components.errors import UserError
from components.policy.checkpoint import load_model, save_model
from components.policy.trainers.base import LoraParams
from components.storage import write_json

ADAPTER, BASE = "adapter", "base"


def base_of(policy: Path, fresh: bool) -> Path:
    """The weights that an adapter is trained upon: those below the policy's own adapter, or the policy."""
    return policy / BASE if (policy / ADAPTER).exists() and not fresh else policy


def add_adapter(model: Any, settings: LoraParams, policy: Path, seed: int, fresh: bool) -> None:
    """Puts adapters into the model, the policy's own or new ones that change nothing yet; only they can be trained.

    Raises:
        UserError: if the model has no such modules, or the policy's adapter is damaged.
    """
    from peft import inject_adapter_in_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(_config(settings), model)
        except ValueError as error:
            raise UserError(f"update.lora.targets={settings.targets}: {str(error).splitlines()[0]}") from error
    path = policy / ADAPTER / "adapter_model.safetensors"
    if fresh or not path.parent.exists():
        return
    try:
        saved = load_file(path)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(saved[_peft_name(name)])
    except Exception as error:  # files, names and shapes fail in kinds of their own
        raise UserError(f"{path} is damaged, or of another shape ({str(error).splitlines()[0]})") from error


def save_adapter(trained: dict[str, Tensor], settings: LoraParams, base: Path, target: Path) -> None:
    """Writes the three checkpoints.

    Args:
        trained: The adapters' weights by their names in the model.
        settings: The adapters' shape.
        base: Checkpoint that they were trained upon.
        target: Folder of the next policy.
    """
    from peft import PeftModel

    shutil.copytree(base, target / BASE, copy_function=_link, ignore=_not_weights, dirs_exist_ok=True)
    (target / ADAPTER).mkdir()
    tensors = {_peft_name(name): tensor.contiguous() for name, tensor in trained.items()}
    save_file(tensors, target / ADAPTER / "adapter_model.safetensors", metadata={"format": "pt"})
    config = _config(settings).to_dict()
    write_json(
        target / ADAPTER / "adapter_config.json", {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    )
    merged = PeftModel.from_pretrained(load_model(target / BASE), target / ADAPTER).merge_and_unload()
    save_model(merged, target)


def _config(settings: LoraParams) -> Any:
    from peft import LoraConfig

    targets = "all-linear" if settings.targets == ["all-linear"] else settings.targets
    return LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )


def _peft_name(name: str) -> str:
    """A parameter's name in peft's files."""
    return f"base_model.model.{name.replace('.default.', '.')}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _not_weights(folder: str, names: list[str]) -> list[str]:
    """Of a policy's folder, what is not its checkpoint."""
    return [n for n in names if n.startswith((".", "optimizer")) or (Path(folder) / n).is_dir()]
