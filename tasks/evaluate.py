"""Evaluate: sampled accuracy on held-out prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.build import make_sampler
from components.params.root import Params
from components.policy.rollout import Sampler, Start
from components.seeds import derive_seed
from components.storage import write_json
from components.tree.anchors import SUCCESS
from components.tree.schema import Status
from tasks.inputs import prompts
from tasks.stage import Context, stage
from tasks.verify import score_answers


@stage("evaluate", output="evaluation.json")
def evaluate(context: Context, policy: Path) -> dict[str, float]:
    """Writes the accuracy of the policy that samples in this iteration, on the validation prompts."""
    params = context.params
    sampler = make_sampler(params, policy, context.iteration)
    result = accuracy(sampler, params, "val", params.evaluation.samples, seed=params.run.seed)
    write_json(context.output, result)
    return result


def accuracy(sampler: Sampler, params: Params, split: str, samples: int, seed: int) -> dict[str, float]:
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
            sampler.renderer.prompt_ids(sampler.environment.chat(p)),
            sampler.world(p),
            derive_seed(seed, "evaluate", p.prompt_id, s),
        )
        for tree, p in enumerate(held_out.values())
        for s in range(samples)
    ]
    leaves = [n for n in sampler.sample(starts, len(held_out)) if n.is_terminal and n.status == Status.OK]
    cases = [(held_out[n.prompt_id], n.answer) for n in leaves]
    rewards = [o.reward for o in score_answers(params, cases) if o.reward is not None]
    return {
        "accuracy": float(np.mean([reward > SUCCESS for reward in rewards])) if rewards else float("nan"),
        "mean_reward": float(np.mean(rewards)) if rewards else float("nan"),
        "rollouts": float(len(starts)),
        "unscored": float(len(starts) - len(rewards)),
    }
