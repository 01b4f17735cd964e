"""The metrics of an iteration: one flat JSON object, whose keys other tools read."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def iteration_metrics(
    iteration: int, forest: Forest, advantage: str, stages: dict[str, Any], budget: float, seconds: float
) -> dict[str, Any]:
    """Collects an iteration's metrics.

    Args:
        iteration: Its number, from 0.
        forest: Its verified forest.
        advantage: Name of the advantage that the update used.
        stages: Manifest entries of its stages: seconds and each stage's own metrics.
        budget: Units that the iteration was granted.
        seconds: Wall time of the iteration.

    Returns:
        Flat name to number. Rewards, ratios and rates are shares in [0, 1]; budget is in units (a factual rollout 1, a
        continuation 1/2) and in leaves; tokens are sampled tokens; `sampling/prefix_cache_share` is the share of the
        histories' tokens, over all turns, whose keys and values the engine did not compute again; times are seconds.
        None where a number is not defined, e.g. a rank correlation of constants; `metrics/not_finite` counts those
        that were NaN or infinite. `eval/accuracy`, the share of
        rewards above 0.5, and `eval/reward`, their mean, belong to the policy that sampled the iteration.
    """
    own: dict[str, dict[str, Any]] = {name: entry["metrics"] for name, entry in stages.items()}
    generate, refill, expand, refit, update = (
        own.get(name, {})
        for name in ("generate", "refill_roots", "expand_prefixes", "refit_predictor", "update_policy")
    )
    flipped, expected = flip_rates(forest)
    factual = [leaf for leaf in forest.scored_L.tolist() if from_stage_1(forest, leaf)]
    line: dict[str, Any] = {
        "iteration": iteration,
        "eval/accuracy": own.get("evaluate", {}).get("accuracy"),
        "eval/reward": own.get("evaluate", {}).get("mean_reward"),
        "train/reward": float(forest.reward_N[factual].mean()) if factual else None,
        "effective_ratio/prompts": effective_ratio_by_prompt(forest),
        "effective_ratio/leaves": effective_ratio_by_leaf(forest),
        "effective_ratio/at_4_leaves": effective_ratio_matched(forest, 4),
        "budget/units": units(forest),
        "budget/leaves": len(forest.leaves_L),
        "budget/factual_rollouts": generate.get("rollouts", 0.0) + refill.get("rollouts", 0.0),
        "budget/extra_roots": expand.get("extra_roots", 0.0),
        "budget/continuations": expand.get("continuations", 0.0),
        "budget/active_prompts": int(forest.is_root_N.sum()),
        "budget/unspent": budget - units(forest),
        "tokens/generated": sum(stage.get("tokens", 0.0) for stage in (generate, refill, expand)),
        "sampling/prefix_cache_share": _prefix_cache_share([generate, refill, expand]),
        "tree/unique_token_ratio": unique_token_ratio(forest),
        "tree/flip_rate": flipped,
        "tree/expected_flip_rate": expected,
    }
    line |= accounting(forest, terms_of(forest, advantage))
    line |= {f"predictor/{name}": value for name, value in refit.items()}
    line |= {f"policy/{name}": value for name, value in update.items()}
    line |= {f"time/{name}": entry["seconds"] for name, entry in stages.items()}
    overlapped = own.get("join_shards", {}).get("overlapped_seconds", 0.0)  # the stages of shards run side by side
    line |= {"time/overlapped": overlapped} if "join_shards" in own else {}
    line["time/iteration"] = max(seconds, sum(entry["seconds"] for entry in stages.values()) - overlapped)
    line["metrics/not_finite"] = sum(1 for value in line.values() if value is not None and not np.isfinite(value))
    return {key: _plain(value) for key, value in line.items()}


def _prefix_cache_share(stages: list[dict[str, float]]) -> float | None:
    """Share of the tokens of all histories, turn by turn, that the engine had not to compute again."""
    prompt = sum(stage.get("prompt_tokens", 0.0) for stage in stages)
    return sum(stage.get("cached_tokens", 0.0) for stage in stages) / prompt if prompt else None


def _plain(value: Any) -> Any:
    """A Python number; None where it is not finite."""
    if value is None or isinstance(value, int):
        return value
    return float(value) if np.isfinite(value) else None
