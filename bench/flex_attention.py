"""The policy update at the shape of Qwen3-0.6B with random weights in bf16: packed trees by `flex_attention`, and flat.

Needs CUDA: only there `flex_attention` has a compiled kernel and a backward pass. Seconds of a step's gradient, medians
of `repeats`, and the floating-point operations a second as a share of the chip's peak. Without CUDA the same code runs
once at a small size in fp32, by blocks of queries instead, and records nothing: a check that the script works.

Run from the repository: python -m bench.flex_attention [PEAK_TFLOPS]
The peak is that of dense bf16 products; 989.5 for H100 SXM and H200, 312 for A100 (NVIDIA's data sheets).
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch

from bench.results import record
from bench.update import SHAPES, build, grow, step
from components.policy.packing.batches import Batch, micro_batches
from components.policy.trainers.base import UpdateParams

QWEN3_06B = {  # config.json of Qwen/Qwen3-0.6B
    "vocabulary": 151_936,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
PEAKS = {"H100": 989.5, "H200": 989.5, "A100": 312.0}  # TFLOP/s


def operations(model: Any, batches: list[Batch]) -> float:
    """Floating-point operations of the gradient: 2 per product and sum, the backward pass twice the forward one.

    Counts each token in the layers, each pair of tokens that sees each other in the attention, each prediction in the
    output layer; nothing that is computed in vain.
    """
    config = model.config
    layers = sum(p.numel() for p in model.model.layers.parameters() if p.ndim == 2)
    total = 0.0
    for batch in batches:
        rows, width = batch.input_ids.shape
        seen = rows * width * (width + 1) // 2
        if batch.end_T is not None:
            seen = int((batch.end_T - torch.arange(width, device=batch.end_T.device)).sum())
        attention = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * seen
        head = len(batch.target_Q) * config.hidden_size * config.vocab_size
        total += 3 * 2 * (layers * rows * width + attention + head)
    return total


def main(repeats: int = 7) -> None:
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    name = torch.cuda.get_device_name() if cuda else "cpu"
    peak = float(sys.argv[1]) if len(sys.argv) > 1 else next((p for chip, p in PEAKS.items() if chip in name), None)
    if cuda:
        model = build(1024, 28, **QWEN3_06B).to(device, torch.bfloat16)
    else:
        print("no CUDA: a small model runs once on the CPU, without flex_attention; nothing is recorded")
        model, repeats = build(32, 2), 1
    figures: dict[str, float] = {}
    for shape in SHAPES:
        forest, terms = grow(shape, model.config.vocab_size, trees=8 if cuda else 2)
        for way in ("tree", "flat"):
            settings = UpdateParams(advantage="rloo", packing=way)
            batches = [batch.to(device) for batch in micro_batches(forest, terms, settings)]
            seconds = []
            for index in range(repeats + 2):  # two to compile and to warm up
                begin = time.perf_counter()
                step(model, batches, settings)
                if cuda:
                    torch.cuda.synchronize()
                if index >= 2:
                    seconds.append(time.perf_counter() - begin)
            figures[f"flex_{way}_update_s_{shape}"] = statistics.median(seconds)
            if peak is not None:
                rate = operations(model, batches) / figures[f"flex_{way}_update_s_{shape}"]
                figures[f"flex_{way}_update_share_of_peak_{shape}"] = rate / (peak * 1e12)
            if cuda:
                figures[f"flex_{way}_update_peak_mb_{shape}"] = torch.cuda.max_memory_allocated() / 2**20
                torch.cuda.reset_peak_memory_stats()
    if cuda:
        record(figures)
    else:
        print(figures)


if __name__ == "__main__":
    main()
