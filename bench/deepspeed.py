"""A policy update by DeepSpeed against the one-process trainer: time, what a launch costs, and memory by ZeRO stage.

Time: the embedded default's model and number of rollouts, each setting in a launch of its own, all of them in turn,
`repeats` times over. Memory: a random model of 54 million parameters, two processes; what a process holds at
the most, with libraries, loading and saving (the first process gathers the checkpoint).

Run from the repository: OMP_NUM_THREADS=1 python -m bench.deepspeed [repeats]
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from bench.results import record
from components.environments.multihop import MultiHop
from components.policy.base import PolicyParams
from components.policy.tiny import build_model, build_tokenizer
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.deepspeed.params import DeepSpeedParams
from components.policy.trainers.deepspeed.trainer import DeepSpeedTrainer
from components.policy.trainers.torch.trainer import TorchTrainer
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason

LINE = re.compile(r"process \d+: ([\d.]+) s for (\d+) steps, (\d+) MiB at the most")


def main(repeats: int = 3) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record(times(Path(folder), repeats))
        record(memory(Path(folder)))


def times(folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of the optimiser steps of one update, and of the whole update with the launch."""
    policy, forest = folder / "tiny", random_forest(128, 3, 40, 90)
    save(build_model(PolicyParams(), build_tokenizer(MultiHop().vocabulary())), policy)
    taken: dict[str, list[float]] = {}
    for repeat in range(repeats):
        begin = time.perf_counter()
        TorchTrainer(UpdateParams(advantage="grpo"), 1.0).update(forest, policy, folder / f"torch-{repeat}", 0)
        taken.setdefault("torch", []).append(time.perf_counter() - begin)
        for processes in (1, 2):
            for stage in range(4):
                name = f"{processes}_zero{stage}"
                begin = time.perf_counter()
                steps, _ = update(settings(processes, stage), forest, policy, folder / f"{name}-{repeat}" / "next")
                whole = time.perf_counter() - begin
                taken.setdefault(f"{name}_steps", []).append(steps)
                taken.setdefault(f"{name}_whole", []).append(whole)
    return {f"deepspeed_update_{name}_s": statistics.median(values) for name, values in taken.items()}


def memory(folder: Path) -> dict[str, float]:
    """MiB that the larger of two processes held at the most."""
    policy, forest = folder / "large", random_forest(8, 2, 40, 90)
    config = Qwen3Config(
        vocab_size=8000, hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8,
        num_key_value_heads=8, head_dim=64, tie_word_embeddings=True, eos_token_id=1,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    save(model, policy)
    numbers = {"deepspeed_memory_parameters_millions": sum(p.numel() for p in model.parameters()) / 1e6}
    del model
    for stage in range(4):
        chosen = settings(2, stage, micro_batch_tokens=512, minibatches=1, epochs=1)
        _, most = update(chosen, forest, policy, folder / f"memory-{stage}" / "next")
        numbers[f"deepspeed_memory_zero{stage}_mib"] = most
    return numbers


def update(chosen: DeepSpeedParams, forest: Forest, policy: Path, target: Path) -> tuple[float, float]:
    """Seconds of the steps in the slower process, and MiB of the larger one."""
    DeepSpeedTrainer(chosen, 1.0, 1).update(forest, policy, target, 0)
    lines = LINE.findall((target.parent / "deepspeed.log").read_text())
    return max(float(seconds) for seconds, *_ in lines), max(float(most) for *_, most in lines)


def settings(processes: int, stage: int, **changes: float) -> DeepSpeedParams:
    chosen = {"name": "deepspeed", "processes": processes, "zero_stage": stage, "advantage": "grpo"}
    return DeepSpeedParams.model_validate(chosen | changes)


def random_forest(prompts: int, rollouts: int, length: int, tokens: int, turns: int = 3) -> Forest:
    """Chains of random tokens with random rewards: what an update costs does not depend on what they say."""
    rng, nodes = np.random.default_rng(0), list[Node]()

    def ids(count: int) -> list[int]:
        return [int(t) for t in rng.integers(6, tokens, count)]

    for tree in range(prompts):
        root = len(nodes)
        nodes.append(Node(tree, f"p{tree}", root, -1, 0, Origin.ROOT, token_ids=ids(length), is_action=[False] * length,
                          logprobs=[float("nan")] * length))  # fmt: skip
        for sibling in range(rollouts):
            parent = root
            for turn in range(1, turns + 1):
                last = turn == turns
                nodes.append(Node(
                    tree, f"p{tree}", len(nodes), parent, turn, Origin.FACTUAL, anchor_id=root, sibling=sibling,
                    token_ids=ids(8), is_action=[True] * 5 + [False] * 3, logprobs=[-4.5] * 5 + [float("nan")] * 3,
                    stop_reason=StopReason.ANSWERED if last else None, status=Status.OK,
                    reward=float(sibling % 2) if last else None,
                ))  # fmt: skip
                parent = nodes[-1].node_id
    return Forest(nodes)


def save(model: Qwen3ForCausalLM, policy: Path) -> None:
    model.save_pretrained(policy)
    build_tokenizer(MultiHop().vocabulary()).save_pretrained(policy)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
