"""The parameters of a run, validated before anything starts.

`params.yaml` holds the embedded default; an overlay or `--set section.key=value` changes single values. An unknown key,
a wrong type or an impossible combination is one clear line that names the key and the value. Imports no torch.
"""

from __future__ import annotations

import re
from contextlib import suppress
from math import inf
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from components.allocation.base import Shape


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text (it wants 1.0e-3); people mean the number."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
AtLeast2 = Annotated[int, Field(ge=2, lt=2**31)]
Width = Annotated[int, Field(gt=0, le=2**16)]  # of a network: beyond, its weights fit in no memory
Fraction = Annotated[Float, Field(ge=0, le=1)]
Positive = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]
Hops = Annotated[int, Field(strict=False, ge=1, le=1000)]  # JSON has only strings as keys


_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def _texts(value: Any) -> list[str]:
    """All texts of lists and values."""
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [t for v in value for t in _texts(v)] if isinstance(value, list) else [value] if isinstance(value, str) else []
    )


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @field_validator("*")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """No text may hold control characters or halves of surrogate pairs: no file, URL or name does."""
        if _CONTROL.search(" ".join(_texts(value))):
            raise ValueError("it holds control characters, or half of a surrogate pair")
        return value


class RunParams(Section):
    """How long, and from which seed."""

    iterations: PositiveInt = Field(16, description="Training iterations.")
    seed: Count = Field(0, description="Seed of everything drawn in the run.")
    threads: Annotated[int, Field(gt=0, le=1024)] = Field(1, description="CPU threads of the numerical library.")
    keep_policies: PositiveInt = Field(2, description="Policies and predictors kept besides those of the best policy.")
    keep_forests: PositiveInt | None = Field(
        None, description="Newest iterations whose trees are kept, at least those needed to go on; null: all."
    )
    runs_dir: str = Field("runs", min_length=1, description="Folder of all runs.")
    data_dir: str = Field("data", min_length=1, description="Folder of data sets and warmed-up policies.")
    store: str | None = Field(None, description="Object store that keeps a copy of every run, e.g. s3://bucket/runs.")
    cluster: str | None = Field(
        None,
        description="Dask cluster that verifies: its scheduler's address (tcp://host:8786), or local.",
    )
    cluster_steps: bool = Field(False, description="Whether the cluster steps environments as well: for slow tools.")

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


class EnvironmentParams(Section):
    """The task, and how hard the built-in generator makes it."""

    name: str = Field(
        "multihop", description="multihop, calculator, devices (built-in); search, math, functions (for real models)."
    )
    train_prompts: PositiveInt = Field(4096, description="Prompts of the training pool.")
    val_prompts: PositiveInt = Field(128, description="Held-out prompts, disjoint from the training pool.")
    test_prompts: PositiveInt = Field(512, description="Prompts for `trace evaluate`, disjoint from both.")
    hops: dict[Hops, NonNegative] = Field(
        {2: 0.4, 3: 0.35, 4: 0.25}, description="Share of questions by number of look-ups."
    )
    max_turns: PositiveInt = Field(6, description="Turns after which a rollout is stopped.")
    files: dict[Literal["train", "val", "test"], list[str]] = Field(
        {}, description="Data files of search and math by split; missing splits are cut from train."
    )
    categories: list[str] = Field(
        ["multi_turn_base", "multi_turn_long_context", "multi_turn_miss_func", "multi_turn_miss_param"],
        description="BFCL categories of functions.",
    )
    python: Literal["sandboxed", "confined"] = Field(
        "sandboxed", description="Interpreter of math: a sandboxed subset, or CPython in a confined process."
    )
    corpus: str | None = Field(None, description="Corpus file that search looks in.")
    retriever: str | None = Field(None, description="URL of a search server, instead of a corpus.")
    record: str | None = Field(None, description="File that keeps a search server's answers for later runs.")
    top_k: PositiveInt = Field(3, description="Passages that a search returns.")
    react: bool = Field(False, description="Search in plain ReAct text, for chat templates without tools.")
    examples: str | None = Field(
        None, description="Worked turns (rows of role and content) that search shows before a question."
    )
    graded: bool = Field(False, description="Search rewards F1 of at least 0.3 as well; success stays above 0.5.")

    @property
    def is_builtin(self) -> bool:
        """Whether the tiny policy can be warmed up on it."""
        from components.datasets.builtin import BUILTIN

        return self.name in BUILTIN

    @model_validator(mode="after")
    def _check(self) -> EnvironmentParams:
        from components.datasets.builtin import BUILTIN
        from components.environments import ENVIRONMENTS

        if self.name not in ENVIRONMENTS:
            raise ValueError(f"name={self.name!r} is not known; choose one of {', '.join(ENVIRONMENTS)}")
        if not 0 < sum(self.hops.values()) < inf:
            raise ValueError(f"hops must give a positive share to at least one number of hops >= 1, got {self.hops}")
        if self.is_builtin and self.max_turns < BUILTIN[self.name].turns(max(self.hops)):
            raise ValueError(f"max_turns={self.max_turns} leaves no turn for the answer after {max(self.hops)} hops")
        return self


class WarmupParams(Section):
    """Supervised learning on generated demonstrations; the result is cached by content."""

    steps: PositiveInt = Field(300, description="Optimiser steps.")
    batch_size: PositiveInt = Field(64, description="Demonstrations per step.")
    learning_rate: Positive = Field(4e-3, description="Peak learning rate of AdamW.")
    zipf: NonNegative = Field(2.0, description="Relation words are demonstrated with frequency 1/rank^zipf.")
    hops: dict[Hops, NonNegative] = Field(
        {2: 0.75, 3: 0.17, 4: 0.08}, description="Share of demonstrations by number of look-ups."
    )
    seed: Count = Field(0, description="Seed of the initial weights and the demonstrations.")

    @model_validator(mode="after")
    def _check(self) -> WarmupParams:
        if not 0 < sum(self.hops.values()) < inf:
            raise ValueError(f"hops must give a positive share to at least one number of hops, got {self.hops}")
        return self


class PolicyParams(Section):
    """Where the policy comes from: a checkpoint, or a tiny Qwen3 built and warmed up here."""

    path: str | None = Field(None, description="Folder with a Hugging Face checkpoint; null builds the tiny policy.")
    layers: Width = Field(2, description="Layers of the tiny policy.")
    hidden: Annotated[Width, Field(multiple_of=8)] = Field(64, description="Hidden size of the tiny policy.")
    warmup: WarmupParams = WarmupParams()


class EngineParams(Section):
    """Who samples. Training needs log-probabilities of the very distribution that was sampled from."""

    name: Literal["transformers", "vllm"] = Field("transformers", description="Registered engine.")
    batch_size: PositiveInt = Field(256, description="Sequences sampled together.")
    cache_gb: Positive = Field(
        1.0, description="GB for keys and values sampled together; as much again for prefixes kept (transformers)."
    )
    keep_prefixes: bool = Field(
        False, description="Keep prefixes across stages; a continued run is then not bit-identical (transformers)."
    )
    temperature: Positive = Field(1.0, description="Sampling temperature, applied in the trainer as well.")
    top_p: Fraction = Field(1.0, description="Must be 1 in training: anything else biases the importance ratio.")
    top_k: Count = Field(0, description="Must be 0 in training.")
    repetition_penalty: Positive = Field(1.0, description="Must be 1 in training.")
    max_turn_tokens: Annotated[int, Field(gt=0, le=2**20)] = Field(24, description="Sampled tokens in one turn.")
    max_tokens: Annotated[int, Field(gt=0, le=2**22)] = Field(
        128, description="Tokens of a whole rollout, prompt and observations included."
    )
    shards: PositiveInt = Field(
        1, description="Parts of an iteration's prompts that are sampled, verified and expanded side by side."
    )
    servers: Annotated[int, Field(ge=0)] | Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        1, description="vllm: URLs of running servers, or how many the run starts; 0 samples in the run's own process."
    )
    python: str = Field(".venv-vllm/bin/python", description="vllm: interpreter of the servers that the run starts.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="vllm: number format.")
    tensor_parallel: PositiveInt = Field(1, description="vllm: GPUs of one server.")
    gpu_memory: Annotated[Float, Field(gt=0, le=1)] = Field(0.9, description="vllm: share of a GPU's memory to use.")
    timeout: Positive = Field(1800.0, description="vllm: seconds after which a request is given up and asked again.")
    patience: Positive = Field(120.0, description="vllm: seconds to wait for a server where none answers.")

    @model_validator(mode="after")
    def _neutral(self) -> EngineParams:
        for key, neutral in (("top_p", 1.0), ("top_k", 0), ("repetition_penalty", 1.0)):
            if (value := getattr(self, key)) != neutral:
                raise ValueError(
                    f"{key}={value} changes the sampled distribution, so log-probabilities no longer belong to it; "
                    f"training needs {key}={neutral}"
                )
        return self


class AllocationParams(Section):
    """Where the rollouts go."""

    arm: str = Field("trace", description="Registered arm.")
    pool: PositiveInt = Field(128, description="Candidate prompts per iteration.")
    root_units: AtLeast2 = Field(128, description="M: bare rollouts per iteration.")
    continuations: Count = Field(2, description="N: continuations per bare rollout.")
    group_size: AtLeast2 = Field(8, description="G: rollouts per prompt of the flat arms.")
    max_per_prompt: AtLeast2 | None = Field(None, description="Cap on the bare rollouts of one prompt.")
    rounds: PositiveInt = Field(1, description="Parts in which continuations are planned, each knowing those before.")

    @property
    def shape(self) -> Shape:
        return Shape(self.root_units, self.continuations, self.group_size, self.max_per_prompt)

    @model_validator(mode="after")
    def _check(self) -> AllocationParams:
        from components.allocation import ARMS

        if self.arm not in ARMS:
            raise ValueError(f"arm='{self.arm}' is not known; choose one of {', '.join(ARMS)}")
        if self.rounds > max(1, self.continuations):
            raise ValueError(f"rounds={self.rounds} is more than continuations={self.continuations} can be parted into")
        if self.rounds > 1 and self.arm not in ("trace", "trace-prefix"):
            raise ValueError(f"rounds={self.rounds}: only trace and trace-prefix plan continuations in rounds")
        if self.shape.units < self.group_size:
            raise ValueError(
                f"the budget of {self.shape.units:g} units (root_units={self.root_units}) does not pay "
                f"one group of group_size={self.group_size} rollouts"
            )
        return self


class PredictorParams(Section):
    """Who estimates the chance of success."""

    name: str = Field("policy-features", description="Registered predictor.")
    hidden: Width = Field(32, description="Hidden units of the head, or of the encoder.")
    members: Width = Field(4, description="Members of the ensemble of heads.")
    steps: PositiveInt = Field(60, description="Optimiser steps of one refit.")
    learning_rate: Positive = Field(3e-3, description="Learning rate of AdamW.")
    weight_decay: NonNegative = Field(0.3, description="Weight decay of AdamW.")
    root_weight: Annotated[Float, Field(gt=0, le=1e6)] = Field(
        3.0, description="Weight of a rollout's label at a root; 1 at a prefix."
    )
    batch_size: PositiveInt = Field(256, description="Prefixes per optimiser step.")
    replay: Count = Field(4, description="Earlier iterations whose labels are used again.")
    path: str | None = Field(None, description="Checkpoint that the backbone starts from; null: the policy.")
    layers: Width = Field(2, description="Layers of the encoder.")
    decay: Fraction = Field(0.8, description="Fading of a prompt's counts per refit (beta, mixture).")
    rollouts: PositiveInt = Field(16, description="Rollouts per prefix of the oracle.")

    @model_validator(mode="after")
    def _check(self) -> PredictorParams:
        from components.predictor import PREDICTORS

        if self.name not in PREDICTORS:
            raise ValueError(f"name={self.name!r} is not known; choose one of {', '.join(PREDICTORS)}")
        return self


class LoraParams(Section):
    """Low-rank adapters: with a rank, only they are trained."""

    rank: Annotated[int, Field(ge=0)] = Field(0, description="Rank of the adapters; 0 trains all weights.")
    alpha: Positive = Field(32.0, description="What they add is scaled by alpha / rank.")
    targets: list[str] = Field(["all-linear"], min_length=1, description="Modules that get one, or all-linear.")

    @model_validator(mode="after")
    def _check(self) -> LoraParams:
        if "all-linear" in self.targets and len(self.targets) > 1:
            raise ValueError(f"targets={self.targets}: all-linear stands alone")
        return self


class UpdateParams(Section):
    """Who learns, and from which advantages."""

    trainer: Literal["torch", "deepspeed"] = Field("torch", description="Registered trainer.")
    advantage: str = Field("treerpo", description="Registered advantage; treerpo is the paper's for math and QA.")
    learning_rate: Annotated[Float, Field(gt=0, le=100)] = Field(4e-4, description="Learning rate of Adam.")
    clip_low: Fraction = Field(0.2, description="The importance ratio is clipped at 1 - clip_low.")
    clip_high: Positive = Field(0.28, description="The importance ratio is clipped at 1 + clip_high.")
    max_grad_norm: Positive = Field(1.0, description="Gradients are scaled down to this norm.")
    epochs: PositiveInt = Field(2, description="Passes over the forest.")
    minibatches: PositiveInt = Field(4, description="Optimiser steps per pass; whole trees stay together.")
    packing: Literal["auto", "tree", "flat"] = Field(
        "auto", description="Shared prefixes computed once (tree), or row by row (flat); auto checks tree once."
    )
    micro_batch_tokens: PositiveInt = Field(
        16384, description="Tokens in one forward pass: unique ones of packed trees, padded ones of flat rows."
    )
    max_path_tokens: PositiveInt | None = Field(
        None, description="Longest path that may be trained; must hold engine.max_tokens. null: no limit."
    )
    importance_cap: Annotated[Float, Field(ge=1)] | None = Field(
        None, description="Cap on the weights trainer/engine of tokens; null: the ratio starts from the engine's own."
    )
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="What layers compute in; weights are kept in fp32.")
    gradient_checkpointing: bool = Field(False, description="Compute layers again in the backward pass: less memory.")
    lora: LoraParams = LoraParams()
    processes: PositiveInt = Field(1, description="Processes of deepspeed, one per GPU.")
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(
        0, description="What deepspeed parts among them: 1 moments, 2 gradients too, 3 weights too."
    )
    offload: bool = Field(False, description="Keep deepspeed's moments and fp32 weights in the host's memory.")

    @model_validator(mode="after")
    def _check(self) -> UpdateParams:
        for key, neutral in (("processes", 1), ("zero_stage", 0), ("offload", False)):
            if self.trainer != "deepspeed" and (value := getattr(self, key)) != neutral:
                raise ValueError(f"{key}={value} is only for trainer=deepspeed")
        if self.offload and self.zero_stage == 0:
            raise ValueError("offload=True moves what ZeRO parts: it needs zero_stage 1, 2 or 3")
        from components.tree.advantages import ADVANTAGES

        if self.advantage not in ADVANTAGES:
            raise ValueError(f"advantage='{self.advantage}' is not known; choose one of {', '.join(ADVANTAGES)}")
        return self


class EvaluationParams(Section):
    """Accuracy on held-out prompts."""

    every: PositiveInt = Field(1, description="Iterations between evaluations (the first and the last always count).")
    samples: PositiveInt = Field(2, description="Rollouts per held-out prompt, at the training temperature.")


class TrackingParams(Section):
    """Where the numbers go besides metrics.jsonl."""

    mlflow: bool = Field(True, description="Log to MLflow, best-effort.")
    experiment: str = Field("trace", min_length=1, description="MLflow experiment.")


class Params(Section):
    """All parameters of a run."""

    run: RunParams = RunParams()
    environment: EnvironmentParams = EnvironmentParams()
    policy: PolicyParams = PolicyParams()
    engine: EngineParams = EngineParams()
    allocation: AllocationParams = AllocationParams()
    predictor: PredictorParams = PredictorParams()
    update: UpdateParams = UpdateParams()
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
