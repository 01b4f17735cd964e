"""A vLLM server with the settings that training needs. Runs in vLLM's own environment, so it imports none of ours.

    PYTHONPATH=. .venv-vllm/bin/python -m components.policy.engines.vllm.server \\
        --model CHECKPOINT --port 8001 --dtype bfloat16

starts one by hand, on this machine or on another one that sees the same checkpoints; further options are vLLM's own.
The server listens on loopback unless `--host` says otherwise: its weights can be exchanged by whoever reaches it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

# The sampled distribution is the model's own at the request's temperature, and so are the log-probabilities.
ENGINE: dict[str, Any] = {
    "generation_config": "vllm",  # generation_config.json of a checkpoint sets no sampling defaults
    "logprobs_mode": "processed_logprobs",  # vLLM's default leaves the temperature out
    "enable_prefix_caching": True,
    "load_format": "dummy",  # the weights come with the first policy
    "worker_extension_cls": "components.policy.engines.vllm.server.WorkerExtension",
}
SERVER: dict[str, Any] = {
    "host": "127.0.0.1",
    "tokens_only": True,  # token ids in and out: no tokenizer is loaded
    "enable_prompt_tokens_details": True,  # how much of a prompt came from the prefix cache
    "disable_uvicorn_access_log": True,
}
CPU: dict[str, Any] = {
    "enforce_eager": True,
    "block_size": 32,  # blocks of 128, the default, hold whole short prompts
    "enable_chunked_prefill": False,  # a prompt in parts and a seed end the engine: "CPU Generator does not use offset"
}
LEAST_BATCH = 2048  # tokens of one step on the CPU; it must hold the longest prompt in one part, and all sequences
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the end points that exchange weights and drop caches
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # servers and trainer share the cores
    "HF_HUB_OFFLINE": "1",
}


class WorkerExtension:
    """Methods that vLLM adds to its workers; they are called by name."""

    def describe(self) -> dict[str, Any]:
        """What the worker holds, and the settings that decide whether its log-probabilities are the trainer's."""
        model, cache = self.vllm_config.model_config, self.vllm_config.cache_config  # type: ignore[attr-defined]
        return {
            "policy": getattr(self, "policy_key", ""),
            "logprobs_mode": str(model.logprobs_mode),
            "generation_config": model.generation_config,
            "enable_prefix_caching": bool(cache.enable_prefix_caching),
            "max_model_len": model.max_model_len,
        }

    def load_policy(self, path: str) -> None:
        """Takes the weights of a checkpoint of the same architecture, which have no name yet."""
        self.policy_key = ""
        self.vllm_config.load_config.load_format = "auto"  # type: ignore[attr-defined]
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        model.allow_patterns_overrides = ["model*.safetensors"]  # the trainer keeps its own beside them
        self.reload_weights(weights_path=path)  # type: ignore[attr-defined]
        if self.vllm_config.model_config.hf_text_config.tie_word_embeddings:  # type: ignore[attr-defined]
            # A tied head is not in the checkpoint, so reloading leaves it, and on the CPU its packed copy, as it was.
            model.lm_head.weight = model.model.embed_tokens.weight
            model.lm_head.quant_method.process_weights_after_loading(model.lm_head)

    def name_policy(self, key: str) -> None:
        """Names the weights, once the caches of earlier ones are dropped; `describe` shows the name."""
        self.policy_key = key


def flags(options: dict[str, Any]) -> list[str]:
    """Options as vLLM's command line takes them."""
    shown: list[str] = []
    for name, value in options.items():
        dashed = name.replace("_", "-")
        shown += [f"--{'no-' if value is False else ''}{dashed}"] + ([] if isinstance(value, bool) else [str(value)])
    return shown


def prepare(max_model_len: int, max_num_seqs: int = 0) -> dict[str, Any]:
    """Sets the environment variables that are not set yet; returns the engine's options for this machine."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return ENGINE
    return ENGINE | CPU | {"max_num_batched_tokens": max(LEAST_BATCH, max_model_len, max_num_seqs)}


def _stop_with_parent() -> None:
    """Ends this process's group when standard input closes: the process that started it is gone, however it ended."""
    while sys.stdin.buffer.read(4096):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(10)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    arguments = sys.argv[1:]
    if "--stop-with-parent" in arguments:
        arguments.remove("--stop-with-parent")
        threading.Thread(target=_stop_with_parent, daemon=True).start()
    given = dict(pairwise(arguments))
    length = given.get("--max-model-len")
    if length is None:
        config = json.loads((Path(given["--model"]) / "config.json").read_text(encoding="utf-8"))
        length = config.get("max_position_embeddings", 0)
    options = prepare(int(length), int(given.get("--max-num-seqs", 0))) | SERVER
    sys.argv = [sys.argv[0], *flags(options), *arguments]
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
