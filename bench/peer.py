"""Against TRL's `GRPOTrainer`: the same tiny policy, prompts, tool loop, number of rollouts and optimiser steps.

Both take 32 prompts x 8 rollouts an iteration, answer the policy's searches from the same environment, and take 8
optimiser steps (2 passes in 4 parts). TRL samples each turn with its own generation, from a `rollout_func` that runs
the tool loop as its documentation describes. This project runs the arm `grpo` through the very stages of its flow,
files and predictor included. Neither evaluates. Times are CPU seconds of one thread, so that a busy machine favours
neither; medians of the iterations after the first.

The limit: the floating-point operations of the matrix products (2 a weight and token forward, 4 backward, attention
beside it), at the speed that one large matrix product reaches on this machine in the same run.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.peer
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from bench.results import record
from components.config import Params
from components.datasets import load_prompts
from components.environments import Prompt
from components.policy import make_environment
from components.policy.checkpoint import load_model
from components.policy.renderer import Renderer
from components.tree.schema import StopReason
from tasks.allocate_roots import allocate_roots
from tasks.expand_prefixes import expand_prefixes
from tasks.generate import generate
from tasks.inputs import read_forest
from tasks.prepare import prepare_data, warm_up_policy
from tasks.refill_roots import refill_roots
from tasks.refit_predictor import refit_predictor
from tasks.run import Run, open_run
from tasks.score_prompts import score_prompts
from tasks.stage import read_stages
from tasks.update_policy import update_policy
from tasks.verify import verify_counterfactual, verify_factual

ROLLOUTS, GROUP = 256, 8


def ours(run: Run, policy: Path, iterations: int) -> tuple[list[float], list[float], int]:
    """CPU seconds of each iteration and of its sampling; tokens of the histories and turns of the last."""
    whole, sampling = [], []
    predictor = None
    for number in range(iterations):
        begin = time.process_time()
        scored = score_prompts.fn(run.path, number, policy=policy, predictor=predictor)
        roots = allocate_roots.fn(run.path, number, scored=scored)
        before = time.process_time()
        generated = generate.fn(run.path, number, policy=policy, roots=roots)
        sampling.append(time.process_time() - before)
        factual = verify_factual.fn(run.path, number, forest=generated)
        factual = refill_roots.fn(run.path, number, policy=policy, roots=roots, factual=factual)
        expanded = expand_prefixes.fn(run.path, number, policy=policy, predictor=predictor, factual=factual)
        verified = verify_counterfactual.fn(run.path, number, forest=expanded)
        earlier = [run.iteration(k) / "forest.parquet" for k in range(max(0, number - 4), number)]
        predictor = refit_predictor.fn(
            run.path, number, policy=policy, predictor=predictor, verified=verified, earlier=earlier
        )
        policy = update_policy.fn(run.path, number, policy=policy, verified=verified)
        whole.append(time.process_time() - begin)
    forest = read_forest(policy.parent / "forest.parquet")
    return whole, sampling, sum(len(forest.prefix_ids(leaf)) for leaf in forest.leaves_L.tolist())


def theirs(policy: Path, prompts: dict[str, Prompt], params: Params, iterations: int, folder: Path) -> Any:
    """CPU seconds of each iteration and of its sampling."""
    starts: list[float] = []
    sampling: list[float] = []
    environment, renderer = make_environment(params), Renderer.load(policy)

    def rollouts(ids: list[str], trainer: Any) -> dict[str, list[Any]]:
        starts.append(time.process_time())
        live = [(row, environment.reset(prompts[p])) for row, p in enumerate(ids)]
        heads = [renderer.prompt_ids(environment.chat(prompts[p])) for p in ids]
        tails: list[list[int]] = [[] for _ in ids]
        masks: list[list[int]] = [[] for _ in ids]
        rewards = [0.0] * len(ids)
        while live:
            turns, _ = trainer._generate_single_turn([heads[row] + tails[row] for row, _ in live], None, {}, 1)
            going = []
            for (row, state), turn in zip(live, turns, strict=True):
                tails[row] += turn
                masks[row] += [1] * len(turn)
                if turn[-1] not in trainer.eos_token_ids:
                    continue
                after = environment.step(state, renderer.decode(turn))
                if after.done:
                    answered = after.stop_reason == StopReason.ANSWERED
                    rewards[row] = float(answered and after.answer == prompts[ids[row]].answer)
                    continue
                seen = list(renderer.observation_ids(after.observation or "", after.role))
                tails[row] += seen
                masks[row] += [0] * len(seen)
                if len(heads[row]) + len(tails[row]) < params.engine.max_tokens:
                    going.append((row, after.state))
            live = going
        sampling.append(time.process_time() - starts[-1])
        assert len(ids) == ROLLOUTS
        return {"prompt_ids": heads, "completion_ids": tails, "logprobs": None, "env_mask": masks, "score": rewards}

    def reward(completions: list[str], score: list[float], **_: Any) -> list[float]:
        return score

    update = params.update
    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        per_device_train_batch_size=ROLLOUTS // update.minibatches,
        steps_per_generation=update.minibatches,
        num_iterations=update.epochs,
        num_generations=GROUP,
        max_completion_length=params.engine.max_turn_tokens,
        max_steps=iterations * update.minibatches * update.epochs + 1,
        learning_rate=update.learning_rate,
        lr_scheduler_type="constant",
        epsilon=update.clip_low,
        epsilon_high=update.clip_high,
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
    )
    trainer = GRPOTrainer(
        model=load_model(policy),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        processing_class=AutoTokenizer.from_pretrained(policy),
        rollout_func=rollouts,
    )
    trainer.train()
    return [b - a for a, b in zip(starts, starts[1:], strict=False)], sampling[: len(starts) - 1]


def peak_flops(size: int = 768, repeats: int = 9) -> float:
    """Operations a CPU second of one fp32 matrix product on one thread."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        a @ b
        times.append(time.process_time() - begin)
    return 2.0 * size**3 / min(times)


def main(iterations: int = 7) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = Params().model_dump()
        tree["run"] |= {"runs_dir": str(folder / "runs"), "data_dir": str(folder / "data"), "iterations": iterations}
        tree["allocation"] |= {"arm": "grpo", "root_units": ROLLOUTS // 2, "continuations": 2, "group_size": GROUP}
        params = Params.model_validate(tree)
        run = open_run(params, "ours")
        data, policy = prepare_data.fn(run.path), warm_up_policy.fn(run.path)
        prompts = load_prompts(data / "train.parquet")
        whole, sampling, tokens = ours(run, policy, iterations)
        stages = read_stages(run.iteration(iterations - 1))
        trl_whole, trl_sampling = theirs(policy, {p.prompt_id: p for p in prompts}, params, iterations, folder / "trl")
        weights = sum(p.numel() for n, p in load_model(policy).named_parameters() if "embed_tokens" not in n)
    step, sample = statistics.median(whole[1:]), statistics.median(sampling[1:])
    trl_step, trl_sample = statistics.median(trl_whole[1:]), statistics.median(trl_sampling[1:])
    forward = 2.0 * weights * tokens / peak_flops()
    for key, entry in stages.items():
        print(f"  {key:24} {entry['seconds']:.3f} s")
    record(
        {
            "trl_rollouts_per_cpu_s": ROLLOUTS / trl_sample,
            "rollouts_per_cpu_s": ROLLOUTS / sample,
            "vs_trl_rollouts_ratio": trl_sample / sample,
            "vs_trl_steps_ratio": trl_step / step,
            "trl_step_cpu_s": trl_step,
            "step_cpu_s": step,
            "sampling_limit_share": forward / sample,
            "step_limit_share": forward * (1 + 3 * params.update.epochs) / step,
        }
    )


if __name__ == "__main__":
    main()
