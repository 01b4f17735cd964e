"""What the tree saves in sampling: continuations that share their prefixes' keys and values, against flat rollouts.

A shape is a tree: a chain of shared tokens, and leaves that branch from it at some depth with 32 sampled tokens of
their own. The shared tokens are given as ids, as in stage 2 of the method; 64 leaves are sampled in one call.

- tree: the engine as it is; a shared token is computed once;
- flat: the same requests with the same seeds, but each history is computed whole, all of them in one batch;
- bound: total over unique tokens; a token is one position of one forward pass, given or sampled alike. A sampled
  position takes more time than a given one, and no tree shares it; the bound by floating-point operations (attention
  and output layer included) stands beside it.

`tree_sampling_share_of_bound` is the worst of the four shapes on a model of 2 layers and 256 hidden units;
`tree_sampling_tiny_share_of_bound` is the same on the embedded default. CPU seconds of one thread, tree and flat in
turns within one run, medians of 5.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.sampling
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from bench.results import record
from components.environments.multihop import MultiHop
from components.policy.base import PolicyParams
from components.policy.engines.base import Completion, Request
from components.policy.engines.transformers.engine import TransformersEngine
from components.policy.engines.transformers.params import TransformersParams
from components.policy.tiny import build_model, build_tokenizer

SAMPLED = 32  # tokens of each continuation
LEAVES = 64  # of one call


@dataclass(frozen=True)
class Shape:
    """A tree: `branches[i]` is the number of shared tokens before leaf i."""

    name: str
    branches: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(depth + SAMPLED for depth in self.branches)

    @property
    def unique(self) -> int:
        return max(self.branches) + SAMPLED * len(self.branches)


SHAPES = (
    Shape("4x256", (256,) * 4),
    Shape("4x512", (512,) * 4),
    Shape("8x512", (512,) * 8),
    Shape("chain", (384, 432, 480, 528, 576, 624, 672, 720)),
)


class FlatEngine(TransformersEngine):
    """Shares nothing: the history of every request is computed whole."""

    def _sample(self, requests: list[Request]) -> list[Completion]:
        histories = [np.array(r.token_ids, dtype=np.int64) for r in requests]
        ends = np.cumsum([len(h) - 1 for h in histories])
        slots = [np.arange(end - len(h) + 1, end) for end, h in zip(ends, histories, strict=True)]
        self._cache.clear()
        self._cache.used = int(ends[-1])
        self._cache.grow()
        self._compute([(h[:-1], own, 0) for h, own in zip(histories, slots, strict=True)])
        capacity, self._cache.capacity = self._cache.capacity, self._cache.used  # no room: nothing is kept
        completions = self._decode(requests, histories, slots)
        self._cache.capacity = capacity
        return completions


def requests(shape: Shape, seed: int, vocabulary: int) -> list[Request]:
    """Requests for whole trees of a shape, as many as have 64 leaves."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(LEAVES // len(shape.branches)):
        chain = rng.integers(5, vocabulary, max(shape.branches)).tolist()
        out += [Request(chain[:depth], int(rng.integers(2**40)), SAMPLED) for depth in shape.branches]
    return out


def flop_bound(shape: Shape, config: Any) -> float:
    """Floating-point operations of the flat tree over those of the shared one."""
    width, hidden = config.num_attention_heads * config.head_dim, config.hidden_size
    kv = config.num_key_value_heads * config.head_dim
    layer = 2 * hidden * (2 * width + 2 * kv + 3 * config.intermediate_size)

    def given(tokens: int) -> float:
        return config.num_hidden_layers * (layer * tokens + 4 * width * tokens * (tokens + 1) / 2)

    sampled = sum(given(d + SAMPLED) - given(d) + SAMPLED * 2 * hidden * config.vocab_size for d in shape.branches)
    return float((sum(map(given, shape.branches)) + sampled) / (given(max(shape.branches)) + sampled))


def cpu_seconds(engine: TransformersEngine, batch: list[Request], policy: Path) -> float:
    engine.load(policy)  # forgets what was kept
    begin = time.process_time()
    engine.generate(batch)
    return time.process_time() - begin


def measure(policy: Path, name: str, repeats: int) -> dict[str, float]:
    settings = TransformersParams(max_tokens=4096)
    tree, flat = TransformersEngine(settings), FlatEngine(settings)
    for engine in (tree, flat):
        engine.load(policy)
        engine.model.config.eos_token_id = None  # every continuation has its full length
    config, numbers, shares = tree.model.config, {}, []
    for shape in SHAPES:
        cost: dict[TransformersEngine, list[float]] = {tree: [], flat: []}
        for repeat in range(repeats):
            batch = requests(shape, repeat, config.vocab_size)
            for engine in (tree, flat):
                cost[engine].append(cpu_seconds(engine, batch, policy))
        speed_up = statistics.median(cost[flat]) / statistics.median(cost[tree])
        bound = shape.total / shape.unique
        shares.append(speed_up / bound)
        numbers |= {
            f"{name}_{shape.name}_speed_up": speed_up,
            f"{name}_{shape.name}_bound": bound,
            f"{name}_{shape.name}_flop_bound": flop_bound(shape, config),
        }
    numbers[f"{name}_share_of_bound"] = min(shares)
    return numbers


def decode_rates(policy: Path, repeats: int) -> dict[str, float]:
    """Sampled tokens per CPU second of the embedded default: 60 given and 40 sampled tokens, none shared."""
    engine = TransformersEngine(TransformersParams())
    engine.load(policy)
    engine.model.config.eos_token_id = None
    rates = {}
    for rows in (64, 128):
        rng, costs = np.random.default_rng(rows), []
        for _ in range(repeats):
            ids = rng.integers(5, engine.model.config.vocab_size, (rows, 60)).tolist()
            costs.append(cpu_seconds(engine, [Request(row, int(rng.integers(2**40)), 40) for row in ids], policy))
        rates[f"sampling_tokens_per_cpu_s_{rows}"] = rows * 40 / statistics.median(costs)
    return rates


def main(repeats: int = 5) -> None:
    torch.set_num_threads(1)
    for name, settings in (
        ("tree_sampling", PolicyParams(layers=2, hidden=256)),
        ("tree_sampling_tiny", PolicyParams()),
    ):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = build_tokenizer(MultiHop().vocabulary())
            build_model(settings, tokenizer).save_pretrained(folder)
            record(measure(Path(folder), name, repeats))
            if name.endswith("tiny"):
                record(decode_rates(Path(folder), repeats))


if __name__ == "__main__":
    main()
