"""vLLM beside the embedded engine on one tiny policy: speed, prefix cache, time of a reload, mismatch of log-probs.

One server with one thread, in processes of its own; the embedded engine has one thread. Run from the repository, after
`make vllm`: OMP_NUM_THREADS=1 python -m bench.vllm
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from bench.results import record
from components.build import environment_of
from components.environments.dataset import load_prompts, prepare
from components.params.root import compose
from components.policy.checkpoint import load_model
from components.policy.engines import ENGINES
from components.policy.engines.base import Engine, Request
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.policy.warmup import warm_up
from components.seeds import derive_seed
from components.tree.schema import Node

BATCH, TOKENS = 64, 64


def mismatch(policy: Path, starts: list[Start], nodes: list[Node]) -> np.ndarray:
    """Absolute differences of the sampled log-probabilities from those of plain forward passes."""
    model, found, ids = load_model(policy).eval(), [], {(s.tree_id, s.sibling): list(s.token_ids) for s in starts}
    for node in nodes:
        history = ids[node.tree_id, node.sibling]
        sampled = [token for token, action in zip(node.token_ids, node.is_action, strict=True) if action]
        with torch.inference_mode():
            logits = model(torch.tensor([history + sampled])).logits[0, len(history) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled)[:, None])[:, 0].numpy()
        found.append(np.abs(expected - np.array(node.logprobs[: len(sampled)])))
        ids[node.tree_id, node.sibling] = history + node.token_ids
    return np.concatenate(found)


def main(repeats: int = 5) -> None:
    torch.set_num_threads(1)
    tiny = {"hidden": 128, "warmup": {"steps": 100}}  # enough for rollouts of several turns
    kinds = {
        name: compose({"policy": tiny, "engine": {"name": name, "batch_size": BATCH, **more}})
        for name, more in (("transformers", {}), ("vllm", {"patience": 600}))
    }
    params = kinds["vllm"]
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(params.environment, Path(folder) / "cache")
        policy = warm_up(params.policy, environment, Path(folder) / "warmup")
        prompts = load_prompts(prepare(environment, Path(folder)) / "val.parquet")[: BATCH // 4]
        other = Path(shutil.copytree(policy, Path(folder) / "other"))
        renderer = Renderer.load(policy)
        for name, chosen in kinds.items():
            engine: Engine = ENGINES[name].make(chosen.engine)
            engine.load(policy)
            sampler = Sampler(engine, renderer, environment, params.engine, 0)
            plain, rollouts, shares, loads = [], [], [], []
            for repeat in range(-1, repeats):  # the first one warms up
                for target in (other, policy):
                    begin = time.perf_counter()
                    engine.load(target)
                    loads.append(time.perf_counter() - begin)
                starts = [
                    Start(p, i, i, s, 0, renderer.prompt_ids(environment.chat(p)), environment.reset(p), seed)
                    for i, p in enumerate(prompts)
                    for s in range(4)
                    for seed in (derive_seed(repeat, i, s),)
                ]
                begin = time.perf_counter()
                nodes = sampler.sample(starts, 0)
                rollouts.append(sum(sum(n.is_action) for n in nodes) / (time.perf_counter() - begin))
                shares.append(engine.cached_tokens / engine.prompt_tokens)
                engine.load(other)
                requests = [Request(s.token_ids, s.seed, TOKENS, s.tree_id) for s in starts]
                begin = time.perf_counter()
                completions = engine.generate(requests)
                plain.append(sum(len(c.token_ids) for c in completions) / (time.perf_counter() - begin))
            figures |= {
                f"{name}_batch64_tokens_per_s": statistics.median(plain[1:]),
                f"{name}_batch64_rollout_tokens_per_s": statistics.median(rollouts[1:]),
                f"{name}_batch64_cached_prompt_share": statistics.median(shares[1:]),
                f"{name}_load_s": statistics.median(loads[2:]),
            }
            apart = mismatch(policy, starts, nodes)
            figures |= {f"{name}_logprob_mismatch_max": apart.max(), f"{name}_logprob_mismatch_mean": apart.mean()}
            if name == "vllm":
                engine.close()  # type: ignore[attr-defined]
    record({key: float(value) for key, value in figures.items()})


if __name__ == "__main__":
    main()
