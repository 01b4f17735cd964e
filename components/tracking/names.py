"""The metrics of an iteration: one flat JSON object, whose keys other tools read."""

from __future__ import annotations

from typing import Any

import numpy as np

from components.params.root import Params
from components.tree.advantages import terms_of
from components.tree.anchors import from_stage_1
from components.tree.forest import Forest
from components.tree.metrics import (
    accounting,
    effective_ratio_by_leaf,
    effective_ratio_by_prompt,
    effective_ratio_matched,
    flip_rates,
    unique_token_ratio,
    units,
)
from components.tree.schema import StopReason

Line = dict[str, Any]  # an iteration's metrics: a line of metrics.jsonl

WORK = {  # the stages of an iteration by kind of work
    "rollouts": ("generate", "refill_roots", "expand_prefixes"),
    "verification": ("verify_factual", "verify_counterfactual"),
    "predictor": ("score_prompts", "allocate_roots", "refit_predictor"),
    "update": ("update_policy",),
    "evaluation": ("evaluate",),
}


def iteration_metrics(
    iteration: int, forest: Forest, params: Params, stages: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Collects an iteration's metrics.

    Args:
        iteration: Its number, from 0.
        forest: Its verified forest.
        params: Those of the run.
        stages: Manifest entries of its stages: seconds and each stage's own metrics.
        seconds: Wall time of the iteration.

    Returns:
        Flat name to number. Rewards, ratios and rates are shares in [0, 1]; budget is in units (a factual rollout 1, a
        continuation 1/2) and in leaves; tokens are sampled tokens; times are seconds. None where a number is not
        defined, e.g. a rank correlation of constants; `metrics/not_finite` counts those that were NaN or infinite.

        - `eval/accuracy`, the share of rewards above 0.5, and `eval/reward`, their mean, belong to the policy that
          sampled the iteration.
        - `sampling/prefix_cache_share`: share of the histories' tokens, over all turns, whose keys and values the
          engine did not compute again.
        - `policy/entropy`: mean of -log p over the sampled tokens, in nats. It estimates the policy's entropy per token
          at the sampling temperature, at the histories that this arm chose to sample: compare it within an arm.
        - `rollouts/tokens_*`, `rollouts/turns_mean`: of whole rollouts, from the prompt to the end, a continuation with
          what it shares; `rollouts/turn_tokens_max`: the longest turn.
        - `rollouts/cut_share`: rollouts that reached a limit on tokens; `stop/<reason>`: why rollouts ended, as shares.
        - `tokens/per_s`: sampled tokens per second of the stages that sample, their predictions at prefixes included.
        - `time_share/<kind>`: share of the time of all stages by the kinds of `WORK`.
    """
    own: dict[str, dict[str, Any]] = {name: entry["metrics"] for name, entry in stages.items()}
    sampling = generate, refill, expand = [own.get(name, {}) for name in WORK["rollouts"]]
    taken = {name: float(entry["seconds"]) for name, entry in stages.items()}
    tokens, spent = sum(stage.get("tokens", 0.0) for stage in sampling), units(forest)
    flipped, expected = flip_rates(forest)
    factual = [leaf for leaf in forest.scored_L.tolist() if from_stage_1(forest, leaf)]
    line: Line = {
        "iteration": iteration,
        "eval/accuracy": own.get("evaluate", {}).get("accuracy"),
        "eval/reward": own.get("evaluate", {}).get("mean_reward"),
        "train/reward": _mean(forest.reward_N[factual]),
        "effective_ratio/prompts": effective_ratio_by_prompt(forest),
        "effective_ratio/leaves": effective_ratio_by_leaf(forest),
        "effective_ratio/at_4_leaves": effective_ratio_matched(forest, 4),
        "budget/units": spent,
        "budget/leaves": len(forest.leaves_L),
        "budget/factual_rollouts": generate.get("rollouts", 0.0) + refill.get("rollouts", 0.0),
        "budget/extra_roots": expand.get("extra_roots", 0.0),
        "budget/continuations": expand.get("continuations", 0.0),
        "budget/active_prompts": int(forest.is_root_N.sum()),
        "budget/unspent": params.allocation.budget.units - spent,
        "tokens/generated": tokens,
        "tokens/per_s": _share(tokens, sum(taken.get(name, 0.0) for name in WORK["rollouts"])),
        "sampling/prefix_cache_share": _share(
            *(sum(stage.get(key, 0.0) for stage in sampling) for key in ("cached_tokens", "prompt_tokens"))
        ),
        "tree/unique_token_ratio": unique_token_ratio(forest),
        "tree/flip_rate": flipped,
        "tree/expected_flip_rate": expected,
        "policy/entropy": _mean(-forest.logprob_T[forest.is_action_T]),
        "policy/learning_rate": params.update.learning_rate,
    }
    line |= accounting(forest, terms_of(forest, params.update.advantage)) | _shape(forest)
    line |= {f"predictor/{name}": value for name, value in own.get("refit_predictor", {}).items()}
    line |= {f"policy/{name}": value for name, value in own.get("update_policy", {}).items()}
    line |= {f"time/{name}": value for name, value in taken.items()}
    overlapped = own.get("join_shards", {}).get("overlapped_seconds", 0.0)  # the stages of shards run side by side
    line |= {"time/overlapped": overlapped} if "join_shards" in own else {}
    line["time/iteration"] = max(seconds, sum(taken.values()) - overlapped)
    for kind, names in WORK.items():
        line[f"time_share/{kind}"] = _share(sum(taken.get(name, 0.0) for name in names), sum(taken.values()))
    line["metrics/not_finite"] = sum(1 for value in line.values() if value is not None and not np.isfinite(value))
    return {key: _plain(value) for key, value in line.items()}


def _shape(forest: Forest) -> Line:
    """How long rollouts are, and why they ended."""
    sampled_N = forest.action_tokens_N.copy()
    for row, parent in enumerate(forest.parent_N.tolist()):
        if parent >= 0:
            sampled_N[row] += sampled_N[parent]
    tokens_L, leaves = sampled_N[forest.leaves_L], [forest.nodes[leaf] for leaf in forest.leaves_L.tolist()]
    stops = {reason: _mean([leaf.stop_reason == reason for leaf in leaves]) for reason in StopReason}
    return {
        "rollouts/tokens_mean": _mean(tokens_L),
        "rollouts/tokens_p95": float(np.percentile(tokens_L, 95)) if leaves else None,
        "rollouts/tokens_max": int(tokens_L.max(initial=0)),
        "rollouts/turn_tokens_max": int(forest.action_tokens_N.max(initial=0)),
        "rollouts/turns_mean": _mean(forest.turn_N[forest.leaves_L]),
        "rollouts/cut_share": stops[StopReason.LENGTH],
    } | {f"stop/{reason}": share for reason, share in stops.items()}


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _plain(value: Any) -> Any:
    """A Python number; None where it is not finite."""
    if value is None or isinstance(value, int):
        return value
    return float(value) if np.isfinite(value) else None
