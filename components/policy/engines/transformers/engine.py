"""Batched sampling over a `transformers` model: prefixes computed once, tokens in and out, seeds per request.

A call first computes the histories of its requests, less their last tokens, into a `PrefixCache`: what an earlier turn
or an earlier call has left there is not computed again, and what several histories begin with is computed once. Then
all rows are sampled together, beginning with the last token of each history; rows that branch from one history read its
keys and values from one place (`attention`). Rows that have ended are dropped, and what they sampled goes to the prefix
cache.

Memory: keys and values of the rows that are sampled together stay within `engine.cache_gb`, those that are kept within
as much again; a forward pass is cut so that its tokens and its attention mask stay within the constants below.

Bits: a key that was computed while sampling differs in its last bits from the same key computed with its whole prefix
(matrix products of other shapes add in another order: on the tiny default about half of the keys and log-probabilities
differ, by up to 3e-6). So what is kept is part of what decides the last bits of a log-probability. Each stage of a run
begins with `load`, which forgets what was kept even if the weights are the same: a stage that is run again after a kill
then meets what it met before, and its files come out bit-identical. With `engine.keep_prefixes` the prefixes of
earlier stages are used as well. It spares the second computation of the histories that stage 2 branches from; a
continued run then equals an unbroken one up to rounding.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import torch

from components.policy.checkpoint import ids_of, shared_model
from components.policy.engines.base import Completion, Engine, Request
from components.policy.engines.transformers.attention import BranchCache, RowCache, save
from components.policy.engines.transformers.params import TransformersParams
from components.policy.engines.transformers.prefix_cache import PrefixCache
from components.policy.packing.padded import groups
from components.storage import content_hash

FORWARD_TOKENS = 4096  # rows by tokens in one forward pass over histories
MASK_ENTRIES = 2**24  # rows by tokens by visible positions
LIVE = 0.75  # rows that have ended are dropped once the others are at most this share

_sampling = threading.Lock()  # a second batch at the same time would cost memory and win nothing


class TransformersEngine(Engine, threading.local):
    """The embedded engine; see `Engine`.

    Each thread has caches of its own, so what one samples does not depend on the others; all share the weights and
    sample in turn. A thread must `load` before it samples.
    """

    def __init__(self, settings: TransformersParams) -> None:
        self.settings, self.batch_size = settings, settings.batch_size
        self.model: Any = None
        self._content = ""
        self._cache: PrefixCache
        self.prompt_tokens = self.cached_tokens = 0

    def load(self, policy: Path) -> None:
        """Raises `UserError` if the checkpoint is missing or damaged."""
        self.prompt_tokens = self.cached_tokens = 0
        content = content_hash(policy)
        if self.model is not None and content == self._content:
            if not self.settings.keep_prefixes:
                self._cache.clear()
            return
        self.model = None  # freed before the next one is read
        self.model = shared_model(policy)
        self._content = content
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        size = 2 * config.num_hidden_layers * heads * dim * self.model.dtype.itemsize
        capacity = max(1, int(self.settings.cache_gb * 1e9 / size))
        self._cache = PrefixCache(config.num_hidden_layers, heads, dim, capacity, self.model.dtype)

    def generate(self, requests: list[Request]) -> list[Completion]:
        with _sampling, torch.inference_mode():
            return self._generate(requests)

    def _generate(self, requests: list[Request]) -> list[Completion]:
        completions = [Completion() for _ in requests]
        asked = [i for i, r in enumerate(requests) if r.max_tokens > 0]

        def length(i: int) -> int:
            return len(requests[i].token_ids) + requests[i].max_tokens

        for group in groups(sorted(asked, key=length), length, self._cache.capacity):
            for i, completion in zip(group, self._sample([requests[i] for i in group]), strict=True):
                completions[i] = completion
        return completions

    def _sample(self, requests: list[Request]) -> list[Completion]:
        histories = [np.array(r.token_ids, dtype=np.int64) for r in requests]
        unique = {h.tobytes(): h[:-1] for h in histories}
        slots = dict(zip(unique, self._prefill(list(unique.values())), strict=True))
        self.prompt_tokens += sum(len(h) for h in histories)
        self.cached_tokens += sum(len(h) - 1 for h in histories)  # less what `_prefill` had to compute
        return self._decode(requests, histories, [slots[h.tobytes()] for h in histories])

    def _prefill(self, prefixes: list[np.ndarray]) -> list[np.ndarray]:
        """Computes what the cache lacks of the prefixes; returns the slots of each."""
        cache = self._cache
        if not cache.has_room(prefixes):
            cache.clear()
        slots: dict[int, np.ndarray] = {}
        firsts, level_of = [0], [0]  # of the runs of slots that are new, in order; before them, what is there
        levels: list[list[tuple[int, int]]] = []  # what waits for the level before: prefix, and where it is new
        for number in sorted(range(len(prefixes)), key=lambda i: prefixes[i].tobytes(), reverse=True):
            slots[number], known = cache.add(prefixes[number])
            if known < len(prefixes[number]):
                before = bisect_right(firsts, slots[number][known - 1]) - 1 if known else 0
                level = level_of[before] + 1 if before else 0
                firsts.append(int(slots[number][known]))
                level_of.append(level)
                levels += [[]] if level == len(levels) else []
                levels[level].append((number, known))
        cache.grow()
        for new in levels:
            new.sort(key=lambda item: (len(prefixes[item[0]]) - item[1], item[1]))
            for batch in groups(new, lambda item: len(prefixes[item[0]]), min(cache.capacity, MASK_ENTRIES)):
                self._compute([(prefixes[i], slots[i], known) for i, known in batch])
        return [slots[i] for i in range(len(prefixes))]

    def _compute(self, rows: list[tuple[np.ndarray, np.ndarray, int]]) -> None:
        """Computes keys and values of prefixes, each with its slots and where it is new, in chunks of bounded size."""
        start = torch.tensor([known for _, _, known in rows])[:, None]
        width = max(len(prefix) - known for prefix, _, known in rows)
        length = int(start.max()) + width
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        for row, (prefix, _, known) in enumerate(rows):
            tokens[row, : len(prefix) - known] = prefix[known:]
        working = RowCache(self._cache, [slots[:known] for _, slots, known in rows], length)
        chunk = max(1, min(FORWARD_TOKENS, MASK_ENTRIES // length) // len(rows))
        for begin in range(0, width, chunk):
            part = torch.from_numpy(tokens[:, begin : begin + chunk])
            self._forward(working, part, start + begin + torch.arange(part.shape[1]))
        save(self._cache, working.kv, [(row, known, slots[known:]) for row, (_, slots, known) in enumerate(rows)])
        self.cached_tokens -= sum(len(prefix) - known for prefix, _, known in rows)

    def _decode(
        self, requests: list[Request], histories: list[np.ndarray], slots: list[np.ndarray]
    ) -> list[Completion]:
        """Samples every row until its end-of-turn token or its limit."""
        limit_B = np.array([r.max_tokens for r in requests])
        steps = int(limit_B.max())
        uniform_BS = uniform(np.array([r.seed for r in requests], dtype=np.int64), steps)
        token_BS, logprob_BS = np.zeros((len(requests), steps), dtype=np.int64), np.zeros((len(requests), steps))
        count_B, stopped_B = np.zeros(len(requests), dtype=np.int64), np.zeros(len(requests), dtype=bool)
        stops = ids_of(self.model.config.eos_token_id)
        branches = BranchCache(self._cache, slots, steps)
        rows, live = np.arange(len(requests)), np.ones(len(requests), dtype=bool)  # requests of the rows that are left
        token = np.array([h[-1] for h in histories])
        position = torch.tensor([len(h) - 1 for h in histories])[:, None]

        def remember(ended: np.ndarray) -> None:
            """Keeps what rows have computed; the last sampled token was never fed, so it is not there."""
            runs = []
            for row in ended.tolist():
                request = rows[row]
                ids = np.concatenate([histories[request], token_BS[request, : count_B[request] - 1]])
                if not self._cache.has_room([ids]):
                    break
                own, known = self._cache.add(ids)
                runs.append((row, known - len(histories[request]) + 1, own[known:]))
            save(self._cache, branches.own, runs)

        for step in range(steps):
            branches.step = step
            logits = self._step(branches, token, position + step) / self.settings.temperature
            token, logprob = draw(logits, uniform_BS[rows, step])
            token_BS[rows, step], logprob_BS[rows, step] = token, logprob
            going = rows[live]
            count_B[going] = step + 1
            stopped_B[going] = np.isin(token[live], stops)
            live &= ~stopped_B[rows] & (step + 1 < limit_B[rows])
            if not live.any():
                break
            if live.mean() <= LIVE:
                remember(np.flatnonzero(~live))
                kept = np.flatnonzero(live)
                branches.keep(kept)
                rows, token, position, live = rows[kept], token[kept], position[kept], live[kept]
        remember(np.arange(len(rows)))
        return [
            Completion(token_BS[i, :n].tolist(), logprob_BS[i, :n].tolist(), bool(stopped_B[i]))
            for i, n in enumerate(count_B.tolist())
        ]

    def _forward(self, cache: RowCache, tokens: torch.Tensor, position: torch.Tensor) -> None:
        """Computes keys and values of `tokens` (B, W) at `position` (B, W) into the cache."""
        cache.position, cache.visible = position, int(position.max()) + 1
        mask = torch.arange(cache.visible) <= position[:, None, :, None]
        decoder = self.model.get_decoder()
        decoder(input_ids=tokens, position_ids=position, attention_mask=mask, cache=cache, use_cache=True)

    def _step(self, branches: BranchCache, token: np.ndarray, position: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) after one more token in every row, (B,) at `position` (B, 1)."""
        out = self.model.get_decoder()(
            input_ids=torch.from_numpy(token)[:, None],
            position_ids=position,
            attention_mask=torch.ones(len(token), 1, 1, 1, dtype=torch.bool),  # `BranchCache` has its own
            cache=branches,
            use_cache=True,
            branches=branches,
        )
        logits: torch.Tensor = self.model.get_output_embeddings()(out.last_hidden_state[:, -1]).float()
        return logits


def draw(logits: torch.Tensor, uniform_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens by inverse transform sampling from logits (B, V), and their log-probabilities; both (B,)."""
    logprobs = torch.log_softmax(logits, dim=-1)
    total = logprobs.double().exp_().cumsum_(dim=-1)
    threshold = torch.from_numpy(uniform_B)[:, None] * total[:, -1:]
    token = torch.searchsorted(total, threshold, right=True).clamp_(max=total.shape[1] - 1)
    return token[:, 0].numpy(), logprobs.gather(1, token)[:, 0].numpy()


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
