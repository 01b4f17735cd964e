"""What every trainer reads and writes: the model to train, Adam's moments, the next policy's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from components.errors import UserError
from components.policy.checkpoint import load_model, load_tokenizer, save_model
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.lora import add_adapter, base_of, save_adapter

Moments = dict[str, dict[str, Tensor]]  # by parameter name: step, exp_avg, exp_avg_sq


def load_trainable(policy: Path, settings: UpdateParams, seed: int, fresh: bool) -> Any:
    """The model in evaluation mode, for the sampling policy had no dropout; what requires a gradient is trained."""
    lora = settings.lora
    model = load_model(base_of(policy, fresh) if lora else policy).eval()
    if lora:
        add_adapter(model, lora, policy, seed, fresh)
    if settings.gradient_checkpointing:
        try:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        except ValueError as error:
            raise UserError(f"update.gradient_checkpointing: {error}") from error
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True  # what is inside stays without dropout
    return model


def trained_of(model: Any) -> dict[str, Any]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_policy(
    model: Any, trained: dict[str, Tensor], settings: UpdateParams, policy: Path, target: Path, fresh: bool
) -> None:
    """Writes the next policy in Hugging Face form.

    Args:
        model: As `load_trainable` made it; its trained parameters may have been parted among processes.
        trained: The whole trained parameters by name, fp32.
        settings: Whether these are adapters.
        policy: Checkpoint that the model was loaded from.
        target: Folder of the next one.
        fresh: As it was when the model was loaded.

    Raises:
        FloatingPointError: if a weight is not finite; nothing is written then.
    """
    if not all(torch.isfinite(weight).all() for weight in trained.values()):
        raise FloatingPointError("the policy's weights are not finite after the last step")
    target.mkdir(parents=True, exist_ok=True)
    if settings.lora is not None:
        save_adapter(trained, settings.lora, base_of(policy, fresh), target)
    else:
        names = {id(parameter): name for name, parameter in reversed(list(model.named_parameters()))}
        state = model.state_dict()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            state[name] = trained[names[id(parameter)]]  # tied weights have several names
        save_model(model, target, state_dict=state)
    load_tokenizer(policy).save_pretrained(target)


def save_moments(moments: Moments, target: Path, rank: int = 0, ranks: int = 1) -> None:
    """Writes the moments that one of several processes collected; all files together are the optimiser's state."""
    part = f"-{rank + 1:05d}-of-{ranks:05d}" if ranks > 1 else ""
    tensors = {f"{name}/{key}": t.clone() for name, state in moments.items() for key, t in state.items()}
    save_file(tensors, target / f"optimizer{part}.safetensors")


def load_moments(policy: Path, trained: dict[str, Any] | None = None) -> Moments:
    """Adam's moments of the trained parameters, or all; empty for a checkpoint without any (a pretrained one).

    They belong to parameters, not to processes: how many wrote them, and with which trainer, does not matter.

    Raises:
        UserError: if a file is missing or damaged, or a moment is not finite or has another shape than its parameter.
    """
    paths = sorted(policy.glob("optimizer*.safetensors"))
    if paths and "-of-" in paths[-1].name and len(paths) != int(paths[-1].stem.rpartition("-")[2]):
        raise UserError(f"{policy} holds only {len(paths)} of the files that {paths[-1].name} belongs to")
    moments: Moments = {}
    for path in paths:
        try:
            tensors = load_file(path)
        except Exception as error:  # the library raises one of no particular kind
            raise UserError(f"{path} is damaged ({str(error).splitlines()[0]})") from error
        for key, tensor in tensors.items():
            name, _, what = key.rpartition("/")
            if not torch.isfinite(tensor).all():
                raise UserError(f"{path}: {key} is not finite")
            if trained is not None and name not in trained:
                continue
            if trained is not None and tensor.shape not in (whole_shape(trained[name]), ()):
                raise UserError(f"{path}: {key} is of another model (shape {list(tensor.shape)})")
            moments.setdefault(name, {})[what] = tensor
    return moments


def whole_shape(parameter: Tensor) -> torch.Size:
    """A parameter's shape, also where ZeRO-3 leaves an empty one in its place."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
