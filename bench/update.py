"""The policy update on packed trees against flat rows: speed-up over the bound, and the memory that backward keeps.

The bound is total / unique: tokens of all rows over tokens of the packed trees, as if nothing but tokens cost. Terms
are those of `rloo`, one per (token, leaf). CPU seconds of one thread, tree and flat in turn, medians of `repeats`.
Two models: hidden 256 with 4 layers, on which `tree_update_share_of_bound` is judged, and the embedded default.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.update
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from bench.results import record
from components.policy.packing.batches import Batch, micro_batches
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import batch_loss
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason
from components.tree.terms import Terms

# Tokens of the prompt, and each node's parent (-1: the prompt) and sampled tokens.
SHAPES: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "4x256": (256, [(-1, 128)] * 4),  # 4 leaves of 128 tokens under 256 shared ones
    "4x512": (512, [(-1, 128)] * 4),
    "8x512": (512, [(-1, 128)] * 8),
    # A chain of 8 turns of 64 tokens under 256, with a branch after each of turns 4 to 7 that is as long as the rest.
    "chain": (256, [(turn - 1, 64) for turn in range(8)] + [(turn, 64 * (7 - turn)) for turn in (3, 4, 5, 6)]),
}
MODELS = {"": (256, 4), "tiny_": (64, 2)}  # hidden size, layers
VOCABULARY = 320


def grow(shape: str, vocabulary: int, trees: int = 1) -> tuple[Forest, Terms]:
    """Trees of one shape with random tokens, and rewards that alternate."""
    prompt, turns = SHAPES[shape]
    rng, nodes, inner = np.random.default_rng(0), [], {parent for parent, _ in turns}
    for tree in range(trees):
        root = len(nodes)
        ids = rng.integers(0, vocabulary, prompt).tolist()
        nodes.append(Node(tree, str(tree), root, -1, 0, Origin.ROOT, token_ids=ids, is_action=[False] * prompt,
                          logprobs=[np.nan] * prompt))  # fmt: skip
        for index, (parent, count) in enumerate(turns):
            above = nodes[root + 1 + parent]
            leaf = {"stop_reason": StopReason.ANSWERED, "reward": float(index % 2)} if index not in inner else {}
            nodes.append(Node(tree, str(tree), len(nodes), above.node_id, above.turn + 1, Origin.FACTUAL, root, index,
                              rng.integers(0, vocabulary, count).tolist(), [True] * count,
                              (-np.log(vocabulary) + rng.uniform(-0.3, 0.3, count)).tolist(), **leaf))  # fmt: skip
    forest = Forest(nodes)
    return forest, terms_of(forest, "rloo")


def build(hidden: int, layers: int, vocabulary: int = VOCABULARY, **shape: Any) -> Any:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    default = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": hidden // 4}
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers,
                         **({"intermediate_size": 3 * hidden} | default | shape))  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def step(model: Any, batches: list[Batch], settings: UpdateParams) -> None:
    """The gradient of one optimiser step."""
    model.zero_grad(set_to_none=True)
    for batch in batches:
        batch_loss(model, batch, settings, 1.0)[0].backward()


def kept_mb(model: Any, batches: list[Batch], settings: UpdateParams) -> float:
    """Megabytes that the backward pass keeps at the largest batch: each storage once, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    most = 0.0
    for batch in batches:
        kept: dict[int, tuple[int, Any]] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, tuple[int, Any]] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = (storage.nbytes(), storage)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            batch_loss(model, batch, settings, 1.0)
        most = max(most, sum(size for pointer, (size, _) in kept.items() if pointer not in weights) / 2**20)
    return most


def main(repeats: int = 7) -> None:
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for name, size in MODELS.items():
        model, shares = build(*size), []
        for shape in SHAPES:
            forest, terms = grow(shape, VOCABULARY)
            ways = {way: UpdateParams(advantage="rloo", packing=way) for way in ("tree", "flat")}
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            tokens, kept = {}, {}
            for way, settings in ways.items():
                batches = micro_batches(forest, terms, settings)
                tokens[way], kept[way] = sum(b.input_ids.numel() for b in batches), kept_mb(model, batches, settings)
            for _ in range(repeats):
                for way, settings in ways.items():
                    begin = time.process_time()
                    step(model, micro_batches(forest, terms, settings), settings)
                    seconds[way].append(time.process_time() - begin)
            bound = tokens["flat"] / tokens["tree"]  # rows of a shape are equally long: none is padded
            speedup = statistics.median(seconds["flat"]) / statistics.median(seconds["tree"])
            shares.append(speedup / bound)
            figures |= {
                f"{name}tree_update_bound_{shape}": bound,
                f"{name}tree_update_speedup_{shape}": speedup,
                f"{name}tree_update_ms_{shape}": 1000 * statistics.median(seconds["tree"]),
                f"{name}tree_update_kept_mb_{shape}": kept["tree"],
                f"{name}flat_update_kept_mb_{shape}": kept["flat"],
            }
        figures[f"{name}tree_update_share_of_bound"] = min(shares)
    record(figures)


if __name__ == "__main__":
    main()
