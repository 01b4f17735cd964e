"""Evaluate: sampled accuracy on held-out prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.config import Params
from components.policy import make_sampler
from components.policy.rollout import Sampler, Start, derive_seed
from components.storage import write_json
from components.tree.anchors import SUCCESS
from components.tree.schema import Status, StopReason
from tasks.inputs import prompts
from tasks.judge import judge
from tasks.stage import Context, stage


@stage("evaluate", output="evaluation.json")
def evaluate(context: Context, policy: Path) -> dict[str, float]:
    """Writes the accuracy of the policy that samples in this iteration, on the validation prompts."""
    params = context.params
    sample = make_sampler(params, policy, context.iteration)
    result = accuracy(sample, params, "val", params.evaluation.samples, seed=params.run.seed)
    write_json(context.output, result)
    return result


def accuracy(sample: Sampler, params: Params, split: str, samples: int, seed: int) -> dict[str, float]:
    """Accuracy over `samples` rollouts for every prompt of a split, at the training temperature.

    The seeds of the rollouts depend on the prompt alone, not on the iteration: policies are compared on equal draws.

    Returns:
        ``accuracy``: share of the scored rollouts whose reward is above `SUCCESS`; ``mean_reward``: their mean reward,
        the same number where rewards are 0 or 1; NaN both where nothing was scored. ``rollouts``, ``unscored``: counts.
    """
    held_out = prompts(params, split)
    starts = [
        Start(
            p,
            tree,
            tree,
            s,
            0,
            sample.renderer.prompt_ids(sample.environment.chat(p)),
            sample.world(p),
            derive_seed(seed, "evaluate", p.prompt_id, s),
        )
        for tree, p in enumerate(held_out.values())
        for s in range(samples)
    ]
    leaves = [n for n in sample.sample(starts, len(held_out)) if n.is_terminal and n.status == Status.OK]
    cases = [(held_out[n.prompt_id], n.observation if n.stop_reason == StopReason.ANSWERED else None) for n in leaves]
    rewards = [o.reward for o in judge(params, cases) if o.reward is not None]
    return {
        "accuracy": float(np.mean([reward > SUCCESS for reward in rewards])) if rewards else float("nan"),
        "mean_reward": float(np.mean(rewards)) if rewards else float("nan"),
        "rollouts": float(len(starts)),
        "unscored": float(len(starts) - len(rewards)),
    }
