"""Sampling by vLLM inside this process, in batches. Needs vLLM's environment, which lacks what whole runs need."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from components.policy.engines.base import Completion, Engine, Request
from components.policy.engines.vllm import server as vllm_server
from components.policy.engines.vllm.engine import Weights, completion, sampling
from components.policy.engines.vllm.launch import options
from components.policy.engines.vllm.params import VllmParams


class ColocatedVllmEngine(Engine):
    """Samples inside this process. See `components.policy.engines.base.Engine`."""

    def __init__(self, settings: VllmParams) -> None:
        self.settings, self.batch_size = settings, settings.batch_size
        self.prompt_tokens = self.cached_tokens = 0
        self._using = threading.Lock()
        self._llm: Any = None
        self._weights: Weights | None = None

    def load(self, policy: Path) -> None:
        """Raises `UserError` if the checkpoint is missing."""
        weights = Weights(policy)
        with self._using:
            if self._llm is None:
                os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
                fixed = vllm_server.prepare(self.settings.max_tokens, self.settings.batch_size)
                from vllm import LLM

                extra = {"skip_tokenizer_init": True, "disable_log_stats": True}
                self._llm = LLM(model=weights.path, **fixed, **extra, **options(self.settings))
            if self._weights is None or self._weights.key != weights.key:
                self._weights = None
                self._llm.collective_rpc("load_policy", args=(weights.path,))
                if not self._llm.reset_prefix_cache():
                    raise RuntimeError("the prefix cache of earlier weights could not be dropped")
            self._weights, self.prompt_tokens, self.cached_tokens = weights, 0, 0

    def generate(self, requests: list[Request]) -> list[Completion]:
        from vllm import SamplingParams

        assert self._weights is not None
        completions = [Completion() for _ in requests]
        asked = [index for index, request in enumerate(requests) if request.max_tokens > 0]
        with self._using:
            outputs = self._llm.generate(
                [{"prompt_token_ids": requests[index].token_ids} for index in asked],
                [SamplingParams(**sampling(self.settings, requests[index], self._weights.stops)) for index in asked],
                use_tqdm=False,
            )
            for index, output in zip(asked, outputs, strict=True):
                sampled = output.outputs[0]
                ids = list(sampled.token_ids)
                logprobs = [by_id[token].logprob for by_id, token in zip(sampled.logprobs, ids, strict=True)]
                completions[index] = completion(ids, logprobs, sampled.finish_reason)
                self.prompt_tokens += len(output.prompt_token_ids)
                self.cached_tokens += output.num_cached_tokens or 0
        return completions
