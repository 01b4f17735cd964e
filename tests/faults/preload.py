"""Imported once by the server that children are forked from: what a run would import on its way."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import flows.cli
import flows.train  # noqa: F401
from components.environments.multihop import MultiHop
from components.policy.base import PolicyParams
from components.policy.checkpoint import load_model, save_model
from components.policy.engines.transformers import engine  # noqa: F401
from components.policy.renderer import Renderer
from components.policy.tiny import build_model, build_tokenizer
from components.policy.trainers.torch import trainer  # noqa: F401
from components.predictor import policy_features, transformer  # noqa: F401

# No backward pass: torch refuses one in a child after one in its parent.
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    tokenizer = build_tokenizer(MultiHop().vocabulary())
    model = build_model(PolicyParams(layers=1, hidden=16), tokenizer)
    torch.optim.Adam(model.parameters())
    save_model(model, Path(folder))
    tokenizer.save_pretrained(folder)
    load_model(Path(folder))
    Renderer.load(Path(folder))
