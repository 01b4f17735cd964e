"""Sampling speed of the embedded engine, whole rollouts with their tool turns, against plain `generate`.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.engine
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from bench.results import record
from components.build import environment_of
from components.environments.dataset import load_prompts, prepare
from components.params.root import compose
from components.policy.checkpoint import shared_model
from components.policy.engines.transformers.engine import TransformersEngine
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.policy.warmup import warm_up
from components.seeds import derive_seed


def main(repeats: int = 5) -> None:
    torch.set_num_threads(1)
    params = compose({})
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(params.environment, Path(folder) / "cache")
        policy = warm_up(params.policy, environment, Path(folder) / "warmup")
        prompts = load_prompts(prepare(environment, Path(folder)) / "val.parquet")
        renderer, engine = Renderer.load(policy), TransformersEngine(params.engine)
        engine.load(policy)
        model = shared_model(policy)
    ours, plain, shares = [], [], []
    for repeat in range(repeats):
        sampler = Sampler(engine, renderer, environment, params.engine, 0)
        engine._cache.clear()
        engine.prompt_tokens = engine.cached_tokens = 0
        starts = [
            Start(
                p,
                i,
                i,
                sibling,
                0,
                renderer.prompt_ids(environment.chat(p)),
                environment.reset(p),
                derive_seed(repeat, i, sibling),
            )
            for i, p in enumerate(prompts)
            for sibling in range(4)
        ]
        begin = time.perf_counter()
        nodes = sampler.sample(starts, 0)
        ours.append(sum(sum(n.is_action) for n in nodes) / (time.perf_counter() - begin))
        shares.append(engine.cached_tokens / engine.prompt_tokens)
        ids = torch.tensor([renderer.prompt_ids(environment.chat(prompts[0]))] * len(prompts))
        begin = time.perf_counter()
        out = model.generate(ids, max_new_tokens=32, do_sample=True, eos_token_id=None, pad_token_id=0)
        plain.append(out[:, ids.shape[1] :].numel() / (time.perf_counter() - begin))
    record(
        {
            "engine_tokens_per_s": statistics.median(ours),
            "engine_generate_tokens_per_s": statistics.median(plain),
            "engine_cached_prompt_share": statistics.median(shares),
        }
    )


if __name__ == "__main__":
    main()
