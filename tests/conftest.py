"""Fixtures shared by the three floors' tests. Every test works in temporary folders and on one thread."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed says what it chose otherwise, wherever it is imported

import pytest
import torch

from components.environments.multihop import MultiHop
from components.params.root import Params, compose
from components.policy.checkpoint import save_model
from components.policy.tiny import build_model, build_tokenizer

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background, children too


@pytest.fixture(autouse=True)
def _nothing_is_stopping() -> Iterator[None]:
    """An interrupted run tells the stages of its own process, which other tests share."""
    yield
    if stages := sys.modules.get("tasks.stage"):
        stages.stopping.clear()


@pytest.fixture(scope="session")
def params() -> Params:
    """A run of seconds, whose policy succeeds at some prompts and fails at others."""
    return compose(
        {
            "run": {"iterations": 2, "threads": 1},
            "environment": {"train_prompts": 64, "val_prompts": 8, "test_prompts": 8, "hops": {1: 0.7, 2: 0.3}},
            "policy": {"warmup": {"steps": 120, "batch_size": 32, "zipf": 1.5, "hops": {1: 0.9, 2: 0.1}}},
            "allocation": {"pool": 16, "root_units": 16, "continuations": 2, "group_size": 4},
            "predictor": {"steps": 5},
            "tracking": {"mlflow": False},
        }
    )


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of data sets and warmed-up policies that runs share; a test that changes files there takes its own."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def random_policy(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """A tiny policy with random weights, in Hugging Face form."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer(MultiHop().vocabulary())
    save_model(build_model(params.policy, tokenizer), folder)
    tokenizer.save_pretrained(folder)
    return folder
