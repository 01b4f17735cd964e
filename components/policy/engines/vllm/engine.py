"""Sampling by vLLM: token ids in and out, log-probabilities of the sampled distribution, a seed per request.

vLLM requires other versions of packages than the pipeline does, so it lives in an environment of its own and is
reached over HTTP: servers that the user started (`engine.servers: [URL, ...]`), or that the run starts and ends
(`engine.servers: 2`). `engine.servers: 0` samples inside this process, where vLLM can be imported.

Weights are exchanged through checkpoint folders that servers and run both see. With the same weights, a seed gives the
same turn as far as the order of floating-point sums lets it: what else is in a server's batch may change the last bits.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import UserError
from components.policy import loop
from components.policy.checkpoint import ids_of
from components.policy.engines.base import AsyncEngine, Completion, Request
from components.policy.engines.vllm.params import VllmParams

if TYPE_CHECKING:
    from components.policy.engines.vllm.client import Pool

logger = logging.getLogger("trace")
MISSING = -9999.0  # what vLLM's server sends for a log-probability that it does not have, or that is not a number


def sampling(settings: VllmParams, request: Request, stops: list[int]) -> dict[str, Any]:
    """Every field of vLLM's sampling parameters that could change the distribution, neutral by name."""
    return {
        "n": 1,
        "temperature": settings.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "min_tokens": 0,
        "ignore_eos": True,  # the end tokens are those below
        "stop_token_ids": stops,
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,
    }


def completion(token_ids: list[int], logprobs: list[float], reason: str | None) -> Completion:
    """What vLLM sampled; raises `ValueError` if it is not whole."""
    whole = len(token_ids) == len(logprobs) and all(MISSING < logprob < math.inf for logprob in logprobs)
    if not whole or reason not in ("stop", "length"):
        raise ValueError(f"tokens {token_ids[-4:]} with log-probabilities {logprobs[-4:]}, ended by {reason!r}")
    return Completion(token_ids, logprobs, reason == "stop")


def _parse(answer: Any) -> tuple[Completion, dict[str, Any]]:
    choice = answer["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return completion(choice["token_ids"], logprobs, choice["finish_reason"]), answer["usage"]


class Weights:
    """A checkpoint as it is now: its folder, a name for its contents, its end tokens."""

    def __init__(self, policy: Path) -> None:
        self.path = str(policy.absolute())
        try:
            eos = json.loads((policy / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
            files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in policy.iterdir())
        except (OSError, ValueError) as error:
            raise UserError(f"{policy} holds no checkpoint: {error}") from error
        self.stops = ids_of(eos)
        self.key = hashlib.blake2b(repr((self.path, files)).encode(), digest_size=16).hexdigest()


class VllmEngine(AsyncEngine):
    """Samples by servers. See `components.policy.engines.base.Engine`; usable from any thread.

    Attributes:
        prompt_tokens, cached_tokens: History tokens of all requests since the last `load`; those of them that came
            from a prefix cache.
    """

    def __init__(self, settings: VllmParams) -> None:
        self.settings, self.batch_size = settings, settings.batch_size
        self.prompt_tokens = self.cached_tokens = 0
        self.close: Callable[[], object] = lambda: None  # ends the servers that this engine started
        self._loading = threading.Lock()
        self._pool: Pool | None = None
        self._weights: Weights | None = None

    def load(self, policy: Path) -> None:
        """Weights that the servers hold already stay, and the caches that belong to them.

        Raises:
            UserError: if no server can be had, or the checkpoint is missing.
        """
        weights = Weights(policy)
        with self._loading:
            launched = []
            if self._pool is None and isinstance(self.settings.servers, int):
                from components.policy.engines.vllm.launch import launch, stop

                launched = launch(self.settings, policy)
                self.close = weakref.finalize(self, stop, launched)
            loop.run(self._load(weights, launched))
            self._weights, self.prompt_tokens, self.cached_tokens = weights, 0, 0

    async def _load(self, weights: Weights, launched: list[Any]) -> None:
        from components.policy.engines.vllm.client import Pool, Server

        settings = self.settings
        if self._pool is None:
            known = [(s.url, s.ended) for s in launched] or [(u, lambda: None) for u in settings.servers]  # type: ignore[union-attr]
            servers = [Server(url, self.batch_size, settings.timeout, ended) for url, ended in known]
            self._pool = Pool(servers, settings.patience)
            shown = sampling(settings, Request([], 0, settings.max_turn_tokens), weights.stops)
            logger.info("vLLM samples with %s", {key: value for key, value in shown.items() if key != "seed"})
        await self._pool.load(weights.path, weights.key, settings.max_tokens)

    async def sample(self, request: Request) -> Completion:
        """One completion; many of them may be under way at once, in the loop of `components.policy.loop`."""
        assert self._weights is not None
        assert self._pool is not None
        if request.max_tokens < 1:
            return Completion()
        body = {
            "token_ids": request.token_ids,
            "sampling_params": sampling(self.settings, request, self._weights.stops),
        }
        result, usage = await self._pool.post("/inference/v1/generate", body, request.tree, _parse)
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return result

    def generate(self, requests: list[Request]) -> list[Completion]:
        return loop.run(loop.all_of(self.sample(request) for request in requests))
