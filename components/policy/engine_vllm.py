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
import os
import threading
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.config import EngineParams, Params
from components.errors import UserError
from components.policy import loop
from components.policy.base import Completion, Request

if TYPE_CHECKING:
    from components.policy.vllm_client import Pool

logger = logging.getLogger("trace")
LEAST_TEMPERATURE = 0.01  # vLLM raises what is below to this value
MISSING = -9999.0  # what vLLM's server sends for a log-probability that it does not have, or that is not a number
HIDDEN = 128  # its attention on the CPU has no heads of fewer than 32 units, and the tiny policy has four


def check(params: Params) -> None:
    """Raises `UserError` if the engine cannot be used here as the parameters ask."""
    settings = params.engine
    if params.policy.path is None and params.policy.hidden % HIDDEN:
        raise UserError(f"policy.hidden={params.policy.hidden}: vLLM needs a multiple of {HIDDEN} in the tiny policy")
    if settings.temperature < LEAST_TEMPERATURE:
        raise UserError(f"engine.temperature={settings.temperature}: vLLM samples at {LEAST_TEMPERATURE} or above")
    if isinstance(settings.servers, tuple):
        _check_urls(settings.servers)
    elif settings.servers and not os.access(settings.python, os.X_OK):
        raise UserError(
            f"engine.python={settings.python!r} is no interpreter; set up vLLM with: make vllm (or name its "
            "interpreter, or running servers in engine.servers)"
        )
    elif not settings.servers and find_spec("vllm") is None:
        raise UserError("engine.servers=0 samples inside this process, where vLLM cannot be imported; use 1")


def _check_urls(urls: tuple[str, ...]) -> None:
    import httpx

    for url in urls:
        try:
            httpx.get(f"{url.rstrip('/')}/health", timeout=10, trust_env=False).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"engine.servers: {url} does not answer ({error}); start it, or leave it out") from None


def sampling(settings: EngineParams, request: Request, stops: list[int]) -> dict[str, Any]:
    """Every field of vLLM's sampling parameters that could change the distribution, neutral by name."""
    return {
        "n": 1,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": 0.0,
        "repetition_penalty": settings.repetition_penalty,
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
        self.stops: list[int] = [eos] if isinstance(eos, int) else list(eos or ())
        self.key = hashlib.blake2b(repr((self.path, files)).encode(), digest_size=16).hexdigest()


class VllmEngine:
    """Samples by servers. See `components.policy.base.Engine`; usable from any thread.

    Attributes:
        prompt_tokens, cached_tokens: History tokens of all requests since the last `load`; those of them that came
            from a prefix cache.
    """

    def __init__(self, settings: EngineParams) -> None:
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
                from components.policy.vllm_launch import launch, stop

                launched = launch(self.settings, policy)
                self.close = weakref.finalize(self, stop, launched)
            loop.run(self._load(weights, launched))
            self._weights, self.prompt_tokens, self.cached_tokens = weights, 0, 0

    async def _load(self, weights: Weights, launched: list[Any]) -> None:
        from components.policy.vllm_client import Pool, Server

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
