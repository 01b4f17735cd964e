"""The parameters of a run: the sections that every run has, and those of what was chosen by name.

`environment`, `engine`, `allocation`, `predictor` and `update` belong to the class that their `name` (of `allocation`:
`arm`) stands for, so a file holds only keys that matter to it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, model_validator

from components.allocation.arm import AllocationParams
from components.allocation.arms import ARMS
from components.environments import ENVIRONMENTS
from components.environments.base import EnvironmentParams
from components.errors import UserError
from components.params.base import MAY_CHANGE, Count, PositiveInt, Section
from components.params.plain_yaml import short
from components.policy.base import PolicyParams
from components.policy.engines import ENGINES
from components.policy.engines.base import EngineParams
from components.policy.trainers import TRAINERS
from components.policy.trainers.base import UpdateParams
from components.predictor.base import PredictorParams
from components.predictor.models import PREDICTORS
from components.registry import Registry, load_plugins
from components.tree.advantages import ADVANTAGES


class RunParams(Section):
    """How long, and from which seed."""

    iterations: Annotated[PositiveInt, MAY_CHANGE] = Field(16, description="Training iterations.")
    seed: Count = Field(0, description="Seed of everything drawn in the run.")
    threads: Annotated[int, Field(gt=0, le=1024)] = Field(1, description="CPU threads of the numerical library.")
    keep_policies: Annotated[PositiveInt, MAY_CHANGE] = Field(
        2, description="Newest policies and predictors kept (at least 2), besides those of the best policy."
    )
    keep_forests: Annotated[PositiveInt | None, MAY_CHANGE] = Field(
        None, description="Newest iterations whose trees are kept, at least those needed to go on; null: all."
    )
    runs_dir: Annotated[str, MAY_CHANGE] = Field("runs", min_length=1, description="Folder of all runs.")
    data_dir: Annotated[str, MAY_CHANGE] = Field(
        "data", min_length=1, description="Folder of data sets and warmed-up policies."
    )
    store: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="Object store that keeps a copy of every run, e.g. s3://bucket/runs."
    )
    cluster: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="Dask cluster that verifies: its scheduler's address (tcp://host:8786), or local."
    )
    cluster_steps: Annotated[bool, MAY_CHANGE] = Field(
        False, description="Whether the cluster steps environments as well: for slow tools."
    )

    @model_validator(mode="after")
    def _check(self) -> RunParams:
        if self.cluster is not None and self.cluster != "local" and "://" not in self.cluster:
            raise ValueError(f"cluster={self.cluster!r} is no address; give local, or one like tcp://host:8786")
        if self.cluster_steps and self.cluster is None:
            raise ValueError("cluster_steps needs a cluster; give local, or an address like tcp://host:8786")
        if self.store is not None:
            kind, mark, place = self.store.partition("://")
            if not (kind and mark and place):
                raise ValueError(f"store={self.store!r} is no URL; give one like s3://bucket/runs or file:///mnt/runs")
            if "@" in place.partition("/")[0] or "?" in place:
                raise ValueError("store holds credentials or options; give these by the variables of its package")
        return self


class EvaluationParams(Section):
    """Accuracy on held-out prompts."""

    every: PositiveInt = Field(1, description="Iterations between evaluations (the first and the last always count).")
    samples: PositiveInt = Field(2, description="Rollouts per held-out prompt, at the training temperature.")


class TrackingParams(Section):
    """Where the numbers go besides metrics.jsonl."""

    mlflow: Annotated[bool, MAY_CHANGE] = Field(True, description="Log to MLflow, best-effort.")
    experiment: Annotated[str, MAY_CHANGE] = Field("trace", min_length=1, description="MLflow experiment.")


class Params(Section):
    """All parameters of a run; made by `compose`."""

    plugins: Annotated[list[str], MAY_CHANGE] = Field(
        [], description="Modules of your own, on the current folder or installed, that bring environments, arms ..."
    )
    run: RunParams = RunParams()
    environment: SerializeAsAny[EnvironmentParams]
    policy: PolicyParams = PolicyParams()
    engine: SerializeAsAny[EngineParams]
    allocation: SerializeAsAny[AllocationParams]
    predictor: SerializeAsAny[PredictorParams]
    update: SerializeAsAny[UpdateParams]
    evaluation: EvaluationParams = EvaluationParams()
    tracking: TrackingParams = TrackingParams()

    @model_validator(mode="after")
    def _check(self) -> Params:
        if self.allocation.pool > self.environment.train_prompts:
            raise ValueError(
                f"allocation.pool={self.allocation.pool} is larger than "
                f"environment.train_prompts={self.environment.train_prompts}"
            )
        longest = self.update.max_path_tokens
        if longest is not None and longest < self.engine.max_tokens:
            raise ValueError(
                f"update.max_path_tokens={longest} is less than a rollout's engine.max_tokens={self.engine.max_tokens}"
            )
        return self


# The sections that belong to what is chosen: the registry, the key that chooses, and the embedded default's choice.
CHOSEN: dict[str, tuple[Registry[Any], str, str]] = {
    "environment": (ENVIRONMENTS, "name", "multihop"),
    "engine": (ENGINES, "name", "transformers"),
    "allocation": (ARMS, "arm", "trace"),
    "predictor": (PREDICTORS, "name", "policy-features"),
    "update": (TRAINERS, "name", "torch"),
}

# Keys of earlier versions, and what became of them.
GONE = {
    "update.trainer": "it is called update.name",
    "engine.top_p": "log-probabilities of the sampled distribution need 1",
    "engine.top_k": "log-probabilities of the sampled distribution need 0",
    "engine.repetition_penalty": "log-probabilities of the sampled distribution need 1",
}


def compose(tree: Mapping[str, Any]) -> Params:
    """The parameters that a tree of sections and keys describes; what it leaves out takes its default.

    Raises:
        UserError: if a name, a key or a value is not acceptable; the message names each.
    """
    plugins = tree.get("plugins") or []
    if not isinstance(plugins, list) or not all(isinstance(name, str) for name in plugins):
        raise UserError(f"plugins={short(plugins)}: expected a list of module names")
    load_plugins(plugins)
    faults: list[str] = []
    sections: dict[str, Any] = {}
    for name, value in {**{section: {} for section in CHOSEN}, **tree}.items():
        if name not in CHOSEN or not isinstance(value, Mapping | None):
            sections[name] = value
            continue
        registry, key, default = CHOSEN[name]
        value = dict(value or {})
        try:
            kind = registry.choose(value.setdefault(key, default))
            sections[name] = kind.Params.model_validate(value)
        except UserError as error:
            faults.append(str(error))
        except ValidationError as error:
            faults += explain(error, f"{name}.", f"{registry.key}={value[key]}")
    faulty = [name for name in CHOSEN if name not in sections]
    for name in faulty:  # so that the faults of the other sections are reported as well
        sections[name] = CHOSEN[name][0][CHOSEN[name][2]].Params()
    try:
        made = Params.model_validate(sections)
        if not faulty:
            ADVANTAGES.choose(made.update.advantage)
            return made
    except ValidationError as error:
        faults = explain(error) + faults
    raise UserError("; ".join(faults))


def explain(error: ValidationError, prefix: str = "", chosen: str = "") -> list[str]:
    """The faults of a validation, each as ``key=value: reason``."""
    parts = []
    for fault in error.errors()[:20]:
        key = prefix + ".".join(str(part)[:80] for part in fault["loc"])
        message, shown = fault["msg"].removeprefix("Value error, "), fault["input"]
        if fault["type"] == "extra_forbidden":
            message = f"no such key{f' with {chosen}' if chosen else ''}" + (f"; {GONE[key]}" if key in GONE else "")
        where = f"{key.rstrip('.')}: " if isinstance(shown, dict | BaseModel) else f"{key}={short(shown)}: "
        parts.append((where if key else "") + message)
    return parts


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of sections as dotted keys; a table whose keys are data (a number, a split) is a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping) and bool(value) and all(isinstance(k, str) for k in value)
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def may_change(params: Params) -> set[str]:
    """The dotted keys that may change when a run is continued, as their sections mark them."""
    keys = params.marked(MAY_CHANGE)
    for name in type(params).model_fields:
        if isinstance(section := getattr(params, name), Section):
            keys |= {f"{name}.{key}" for key in section.marked(MAY_CHANGE)}
    return keys
