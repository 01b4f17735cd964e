"""The small runs that are killed and damaged: some prompts succeed and some fail, so that every stage has work."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "run": {"iterations": 3, "threads": 1, "keep_policies": 1},
    "environment": {"train_prompts": 64, "val_prompts": 4, "test_prompts": 4, "hops": {1: 1.0}},
    "policy": {"layers": 1, "hidden": 32, "warmup": {"steps": 120, "batch_size": 32, "hops": {1: 1.0}}},
    "allocation": {"pool": 6, "root_units": 8, "continuations": 2, "group_size": 4},
    "predictor": {"steps": 3, "hidden": 8},
    "update": {"epochs": 1, "minibatches": 2},
    "evaluation": {"samples": 1},
    "tracking": {"mlflow": False},
}
SELDOM = SMALL | {"evaluation": {"samples": 1, "every": 2}}  # so that the best policy changes, and an earlier one goes
CAMPAIGNS: dict[str, dict[str, Any]] = {
    "trace in two rounds": SELDOM | {"allocation": SMALL["allocation"] | {"rounds": 2}},
    "grpo-filter, mixture": SELDOM
    | {
        "allocation": SMALL["allocation"] | {"arm": "grpo-filter"},
        "predictor": {"name": "mixture", "steps": 3, "hidden": 8},
    },
    "trace, encoder": SELDOM | {"predictor": {"name": "encoder", "steps": 3, "hidden": 16, "layers": 1}},
}
