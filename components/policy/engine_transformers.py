"""Batched sampling over a `transformers` model: a preallocated key-value cache, tokens in and out, seeds per request.

Each row of the cache holds one sequence, left-aligned, so a row's cache index is its position. Rows may have different
lengths; a query at position p sees the keys at positions up to p, so what lies beyond is never read. The keys and
values of a call are kept for the next one: a request that extends a sequence of the last call (the next turn after an
observation) computes only its new tokens, and requests with the same history (siblings at one anchor) compute it once.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Cache

from components.config import EngineParams
from components.policy.base import Completion, Request
from components.policy.checkpoint import shared_model

_sampling = threading.Lock()  # a second batch at the same time would cost memory and win nothing


class RowCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of B rows by T positions, written at each row's own position."""

    def __init__(self, config: Any, rows: int, length: int) -> None:  # the parent's layers are not used
        heads, dim = (
            getattr(config, "num_key_value_heads", config.num_attention_heads),
            getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        )
        self.layers: list[Any] = []
        shape = (config.num_hidden_layers, rows, heads, length, dim)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.row_index = torch.arange(rows)[:, None]
        self.position: torch.Tensor = torch.zeros(rows, 1, dtype=torch.long)
        self.visible = length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (B, heads, W, dim) at `position` (B, W) and returns the first `visible` positions of the layer."""
        self.keys[layer_idx][self.row_index, :, self.position] = key.transpose(1, 2)
        self.values[layer_idx][self.row_index, :, self.position] = value.transpose(1, 2)
        return self.keys[layer_idx, :, :, : self.visible], self.values[layer_idx, :, :, : self.visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.visible

    def copy_rows(self, other: RowCache, rows: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copies the first `length` positions of `other`'s `rows` to this cache's rows `target`."""
        self.keys[:, target, :, :length] = other.keys[:, rows, :, :length]
        self.values[:, target, :, :length] = other.values[:, rows, :, :length]


class TransformersEngine(threading.local):
    """The embedded engine. See `components.policy.base.Engine`.

    Each thread has caches of its own, so what one samples does not depend on the others; all share the weights and
    sample in turn. A thread must `load` before it samples.
    """

    def __init__(self, settings: EngineParams) -> None:
        self.batch_size = settings.batch_size
        self.temperature = settings.temperature
        self.model: Any = None
        self._drop_cache()

    def load(self, policy: Path) -> None:
        """Raises `UserError` if the checkpoint is missing or damaged."""
        self._drop_cache()
        self.model = shared_model(policy)

    def _drop_cache(self) -> None:
        self._cache: RowCache | None = None
        self._known: dict[bytes, int] = {}  # token ids of a cached sequence -> its row
        self._lengths: list[int] = []  # their lengths, longest first
        self.prompt_tokens = self.cached_tokens = 0  # history tokens of all requests; those of them not computed again

    def generate(self, requests: list[Request]) -> list[Completion]:
        with _sampling, torch.inference_mode():
            return self._generate(requests) if requests else []

    def _generate(self, requests: list[Request]) -> list[Completion]:
        histories = [np.array(r.token_ids, dtype=np.int64) for r in requests]
        unique: dict[bytes, int] = {}
        row_of = [unique.setdefault(h.tobytes(), len(unique)) for h in histories]
        firsts = [np.frombuffer(key, dtype=np.int64) for key in unique]
        budget = np.array([r.max_tokens for r in requests])
        cache, logits = self._prefill(firsts, max(len(h) for h in histories) + int(budget.max()))
        self.prompt_tokens += sum(len(h) for h in histories)
        self.cached_tokens += sum(len(h) for h in histories) - sum(len(h) for h in firsts)
        if len(unique) < len(requests):  # siblings share the history that was computed once
            shared, cache = cache, RowCache(self.model.config, len(requests), cache.keys.shape[3])
            index = torch.tensor(row_of)
            cache.copy_rows(shared, index, torch.arange(len(requests)), max(len(h) for h in firsts))
            logits = logits[index]
        completions = self._decode(cache, logits, [len(h) for h in histories], requests)
        sequences = [
            np.concatenate([h, c.token_ids[:-1]]).astype(np.int64) for h, c in zip(histories, completions, strict=True)
        ]
        self._cache = cache  # the last sampled token was never fed, so its keys are not in the cache
        self._known = {s.tobytes(): row for row, s in enumerate(sequences)}
        self._lengths = sorted({len(s) for s in sequences}, reverse=True)
        return completions

    def _prefill(self, histories: list[np.ndarray], length: int) -> tuple[RowCache, torch.Tensor]:
        """Computes the histories, less what the last call left, into a new cache, and the next-token logits."""
        cache = RowCache(self.model.config, len(histories), length)
        reused = np.zeros(len(histories), dtype=np.int64)
        source = np.zeros(len(histories), dtype=np.int64)
        for row, history in enumerate(histories):
            for cut in self._lengths:
                if cut < len(history) and (found := self._known.get(history[:cut].tobytes())) is not None:
                    reused[row], source[row] = cut, found
                    break
        if self._cache is not None and reused.any():
            rows = np.flatnonzero(reused)
            cache.copy_rows(self._cache, torch.from_numpy(source[rows]), torch.from_numpy(rows), int(reused.max()))
        self.cached_tokens += int(reused.sum())
        fresh = [h[r:] for h, r in zip(histories, reused, strict=True)]
        width = max(len(f) for f in fresh)
        tokens = np.zeros((len(histories), width), dtype=np.int64)
        for row, ids in enumerate(fresh):
            tokens[row, : len(ids)] = ids
        start = torch.from_numpy(reused)[:, None]
        hidden = self._forward(cache, torch.from_numpy(tokens), start + torch.arange(width))
        last = torch.tensor([len(f) - 1 for f in fresh])
        return cache, self.model.get_output_embeddings()(hidden[torch.arange(len(fresh)), last])

    def _decode(
        self, cache: RowCache, logits: torch.Tensor, lengths: list[int], requests: list[Request]
    ) -> list[Completion]:
        """Samples every row until its end-of-turn token or its limit."""
        completions = [Completion() for _ in requests]
        limit = np.array([r.max_tokens for r in requests])
        uniforms = torch.from_numpy(uniform(np.array([r.seed for r in requests], dtype=np.int64), int(limit.max())))
        position = torch.tensor(lengths)[:, None]
        eos = self.model.config.eos_token_id
        stops = {eos} if isinstance(eos, int) else set(eos or ())
        live = limit > 0
        for step in range(int(limit.max())):
            logprobs = torch.log_softmax(logits.float() / self.temperature, dim=-1)
            total = logprobs.double().exp().cumsum(dim=-1)
            token = torch.searchsorted(total, uniforms[:, step : step + 1] * total[:, -1:], right=True).clamp_(
                max=total.shape[1] - 1
            )
            chosen, logprob = token[:, 0].tolist(), logprobs.gather(1, token)[:, 0].tolist()
            for row in np.flatnonzero(live):
                completions[row].token_ids.append(chosen[row])
                completions[row].logprobs.append(logprob[row])
                completions[row].stopped = chosen[row] in stops
                live[row] = not completions[row].stopped and step + 1 < limit[row]
            if not live.any():
                break
            logits = self.model.get_output_embeddings()(self._forward(cache, token, position + step)[:, -1])
        return completions

    def _forward(self, cache: RowCache, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, W, hidden) of `tokens` (B, W) at `position` (B, W)."""
        position = position.clamp_(max=cache.keys.shape[3] - 1)
        cache.position = position
        cache.visible = int(position.max()) + 1
        mask = torch.arange(cache.visible) <= position[:, None, :, None]
        base = self.model.get_decoder()
        out = base(input_ids=tokens, position_ids=position, attention_mask=mask, cache=cache, use_cache=True)
        hidden: torch.Tensor = out.last_hidden_state
        return hidden


def uniform(seeds_B: np.ndarray, steps: int) -> np.ndarray:
    """Uniform numbers in [0, 1) by (seed, step), float64 (B, steps): SplitMix64 as a counter-based generator.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        z = seeds_B.astype(np.uint64)[:, None] + np.arange(1, steps + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    result: np.ndarray = (z >> np.uint64(11)).astype(np.float64) / 2.0**53
    return result
