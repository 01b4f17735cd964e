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
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from bench.results import record
from bench.stages import iterate
from components.build import make_environment
from components.environments.base import Prompt
from components.environments.dataset import load_prompts
from components.params.root import Params, compose
from components.policy.checkpoint import load_model
from components.policy.renderer import Renderer
from components.tree.schema import StopReason
from tasks.inputs import read_forest
from tasks.prepare import prepare_data, warm_up_policy
from tasks.run import Run, open_run

ROLLOUTS, GROUP = 256, 8


def ours(run: Run, policy: Path, iterations: int) -> tuple[list[dict[str, float]], int]:
    """CPU seconds of each iteration by stage; tokens of all rollouts of the last one, from prompt to end."""
    predictor: Path | None = None
    seconds = []
    for number in range(iterations):
        policy, predictor, stages = iterate(run, number, policy, predictor)
        seconds.append(stages)
    forest = read_forest(policy.parent / "forest.parquet")
    return seconds, sum(len(forest.prefix_ids(leaf)) for leaf in forest.leaves_L.tolist())


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
    return [b - a for a, b in pairwise(starts)], sampling[: len(starts) - 1]


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
        params = compose(tree)
        run = open_run(params, "ours")
        data, policy = prepare_data.fn(run.path), warm_up_policy.fn(run.path)
        prompts = load_prompts(data / "train.parquet")
        seconds, tokens = ours(run, policy, iterations)
        trl_whole, trl_sampling = theirs(policy, {p.prompt_id: p for p in prompts}, params, iterations, folder / "trl")
        weights = sum(p.numel() for n, p in load_model(policy).named_parameters() if "embed_tokens" not in n)
    stages = {name: statistics.median(each[name] for each in seconds[1:]) for name in seconds[0]}
    step, sample = statistics.median(sum(each.values()) for each in seconds[1:]), stages["generate"]
    trl_step, trl_sample = statistics.median(trl_whole[1:]), statistics.median(trl_sampling[1:])
    predictor = stages["score_prompts"] + stages["refit_predictor"]
    forward = 2.0 * weights * tokens / peak_flops()
    for name, spent in stages.items():
        print(f"  {name:24} {spent:.3f} CPU s")
    record(
        {
            "trl_rollouts_per_cpu_s": ROLLOUTS / trl_sample,
            "rollouts_per_cpu_s": ROLLOUTS / sample,
            "vs_trl_rollouts_ratio": trl_sample / sample,
            "vs_trl_steps_ratio": trl_step / step,
            "vs_trl_steps_without_predictor_ratio": trl_step / (step - predictor),
            "trl_step_cpu_s": trl_step,
            "step_cpu_s": step,
            "sampling_limit_share": forward / sample,
            "step_limit_share": forward * (1 + 3 * params.update.epochs) / step,
        }
    )


if __name__ == "__main__":
    main()
