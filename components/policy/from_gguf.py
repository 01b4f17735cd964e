"""A GGUF file as a checkpoint in Hugging Face form, the only form that runs read. Needs the package `gguf`.

python -m components.policy.from_gguf FILE FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.errors import UserError
from components.policy.checkpoint import save_model
from components.storage import atomic_path


def from_gguf(file: Path, folder: Path) -> Path:
    """Writes weights (fp32, dequantised), tokenizer and chat template of `file` to `folder`, which must not exist.

    Raises:
        UserError: if the file cannot be read, or the folder exists.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already")
    try:
        quantized = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # missing packages, unknown architectures and damaged files share no base class
        raise UserError(f"{file} cannot be read as GGUF: {(str(error) or repr(error)).splitlines()[0]}") from error
    config = quantized.config
    del config.quantization_config  # the weights are no longer quantised, and a model that says so cannot be saved
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    with atomic_path(folder) as temporary:
        save_model(model, temporary)
        tokenizer.save_pretrained(temporary)
    return folder


if __name__ == "__main__":
    try:
        from_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(f"Error: {error}")
