"""The stages of an iteration: what each needs on its devices, how many tokens it handles, how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from components.allocation.arms import ARMS
from components.params.root import Params
from components.planning import memory
from components.planning.hardware import Cluster
from components.planning.memory import Parts, Placement
from components.planning.models import Model
from components.policy.engines.vllm import VllmParams
from components.policy.trainers.deepspeed import DeepSpeedParams
from components.predictor.base import FitParams
from components.predictor.models.policy_features import PolicyFeaturesParams

# Assumed share of the peak (model FLOP utilisation; Chowdhery et al. 2022, arXiv 2204.02311, section 4.1). Learning:
# Llama 3 reports 38 to 43 % on H100s (Grattafiori et al. 2024, arXiv 2407.21783, Table 4); long, uneven rollouts get
# less. Sampling reads all weights for every token: its share is an assumption. The predictor computes in fp32, whose
# peak is a fifteenth of the bfloat16 one on these GPUs (same data sheets). A CPU's peak is its fp32 one.
UTILISATION = {"sample": 0.15, "predict": 0.05, "update": 0.35}
UTILISATION_CPU = {"sample": 0.15, "predict": 0.30, "update": 0.30}
VERIFICATIONS = (
    200.0  # a second and process: the slowest verifier measured (bench/results.json, math_verifications_per_s)
)
WRITING = 1e9  # bytes a second to disk
FOREST_BYTES = 17.0  # per tree token, all Parquet files of an iteration together; the default run had 16.1 to 18.2

# What to change if a part does not fit, by stage and part; the first key that exists decides the advice.
ADVICE = {
    "kv cache": "engine.batch_size",
    "activations": "update.micro_batch_tokens",
    "logits": "update.micro_batch_tokens",
    "weights": "update.zero_stage (3 parts the weights among processes) or update.processes",
    "gathered weights": "update.processes",
    "gradients": "update.zero_stage (2 parts the gradients among processes) or update.processes",
    "optimiser": "update.zero_stage, update.processes or update.offload",
    "hidden states": "predictor.name (encoder and backbone keep no hidden states of the policy)",
    "head": "predictor.hidden",
}


@dataclass(frozen=True)
class Stage:
    """One stage of an iteration.

    Attributes:
        name: As in the method.
        memory: Bytes on each of its devices, by what they hold; empty where none is used.
        devices: How many devices work.
        tokens: Tokens that go through a model in one iteration.
        flops: Floating-point operations in one iteration.
        seconds: In one iteration.
    """

    name: str
    memory: Parts
    devices: int
    tokens: float
    flops: float
    seconds: float

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())


@dataclass(frozen=True)
class Plan:
    """What a run needs.

    Attributes:
        stages: In the order of an iteration.
        rollouts: Factual rollouts and continuations of an iteration.
        rollout_tokens: Assumed mean length of a whole rollout.
        tree_tokens: Tokens of an iteration's forest, shared prefixes counted once.
        path_tokens: The same along every path, as flat rows.
        iterations: Of the run.
        disk: Bytes on disk at the end, by what they hold.
        problems: What does not fit, each with the key to change; empty if the run fits.
        notes: What is worth knowing.
    """

    stages: list[Stage]
    rollouts: tuple[int, int]
    rollout_tokens: float
    tree_tokens: float
    path_tokens: float
    iterations: int
    disk: dict[str, float]
    problems: list[str]
    notes: list[str]

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.iterations * sum(stage.seconds for stage in self.stages)


def rollouts_of(params: Params) -> tuple[int, int]:
    """Factual rollouts and continuations of an iteration that spends its whole budget."""
    budget = params.allocation.budget
    branches = ARMS[params.allocation.arm].branches
    return (budget.root_units, budget.root_units * budget.continuations) if branches else (int(budget.units), 0)


def plan(
    params: Params, policy: Model, predictor: Model | None, cluster: Cluster, rollout_tokens: float | None = None
) -> Plan:
    """What a run needs, and whether it fits.

    Memory is planned for rollouts of `engine.max_tokens`, tokens and time for those of mean length.

    Args:
        params: The run.
        policy: Shape of its policy.
        predictor: Shape of the predictor's own model; None if it has none.
        cluster: What it would run on.
        rollout_tokens: Mean length of a whole rollout; None: half of `engine.max_tokens`.
    """
    place = Placement.of(params)
    length = rollout_tokens if rollout_tokens is not None else params.engine.max_tokens / 2
    factual, further = rollouts_of(params)
    leaves, prompt = factual + further, memory.PROMPT * length
    tree, paths = (
        (factual + further / 2) * length,
        leaves * length,
    )  # a continuation starts half-way in the mean, App. E.5
    reader = predictor or (policy if isinstance(params.predictor, PolicyFeaturesParams) else None)
    pool = params.allocation.pool
    sampling = memory.sampling(params, policy, place, prompt)
    rollout = sampling["kv cache"] / params.engine.batch_size
    if held := place.held_share * cluster.memory:  # vLLM makes do with what it may take
        sampling["kv cache"] = max(0.0, min(sampling["kv cache"], held - sampling["weights"]))
    workers = min(cluster.devices, place.servers * place.tensor_parallel)
    learners = min(cluster.devices, place.processes)

    def stage(name: str, parts: Parts, devices: int, tokens: float, flops: float, kind: str) -> Stage:
        share = (UTILISATION_CPU if cluster.is_cpu else UTILISATION)[kind]
        return Stage(name, parts, devices, tokens, flops, flops / (cluster.peak * devices * share))

    def read(tokens: float, mean: float) -> float:
        return tokens * reader.forward_flops(mean) if reader else 0.0

    def sampled(tokens: float) -> float:
        return tokens * policy.forward_flops(length)

    held_out = params.environment.val_prompts * params.evaluation.samples * length / params.evaluation.every
    kept = tree * (1 + params.predictor.replay)
    fit = params.predictor if isinstance(params.predictor, FitParams) else FitParams()
    fitted = fit.steps * fit.batch_size * length / 2
    learning = (fitted, 3 * read(fitted, length / 2)) if predictor else (kept if reader else 0.0, read(kept, length))
    passes = params.update.epochs * (4 if place.checkpointing else 3)  # backward costs two forward passes
    learned = params.update.epochs * (tree if place.packed else paths)
    checkpoint = memory.FP32 * (policy.parameters + 2 * memory.trained_parameters(policy, place.lora_rank))
    stages = [
        stage("evaluation", sampling, workers, held_out, sampled(held_out), "sample"),
        stage("scoring", memory.scoring(params, policy, predictor, pool), 1, pool * prompt,
              read(pool * prompt, prompt), "predict"),
        stage("generation", sampling, workers, factual * length, sampled(factual * length), "sample"),
        stage("expansion", sampling, workers, further * length / 2,
              sampled(further * length / 2) + read(factual * length, length), "sample"),
        Stage("verification", {}, 0, 0.0, 0.0, leaves / VERIFICATIONS),
        stage("refit", memory.refit(params, policy, predictor, leaves), 1, *learning, "predict"),
        stage("update", memory.update(params, policy, place, leaves), learners, learned,
              passes / params.update.epochs * learned * policy.forward_flops(length), "update"),
        Stage("checkpoint", memory.writing(policy, place), 0, 0.0, 0.0, checkpoint / WRITING),
    ]  # fmt: skip
    keep = (
        min(params.run.iterations, max(2, params.run.keep_policies) + 1) + 1
    )  # the newest, the best, the one being written
    disk = {
        "policies": keep * checkpoint,
        "forests": params.run.iterations * tree * FOREST_BYTES,
    }
    problems, notes = _fit(params, stages, place, cluster, rollout)
    return Plan(stages, (factual, further), length, tree, paths, params.run.iterations, disk, problems, notes)


def _fit(
    params: Params, stages: list[Stage], place: Placement, cluster: Cluster, rollout: float
) -> tuple[list[str], list[str]]:
    """What does not fit, and what is worth knowing; `rollout` are the bytes of one rollout's keys and values."""
    problems: list[str] = []
    notes: list[str] = []
    servers = place.servers * place.tensor_parallel if place.held_share else 1
    for name, wanted in (
        ("engine.servers × engine.tensor_parallel", servers),
        ("update.processes", place.processes),
    ):
        if wanted > cluster.devices and not cluster.is_cpu:
            problems.append(f"{name} = {wanted} is more than the GPUs, of which there are {cluster.devices}")
    if not cluster.is_cpu and not isinstance(params.engine, VllmParams):
        notes.append("engine.name: transformers and update.name: torch compute on the CPU; GPUs need vllm, deepspeed")
    held = place.held_share * cluster.memory
    for stage in stages:
        on_host = stage.devices == 0 and not cluster.is_cpu
        if on_host or stage.name in (
            "evaluation",
            "expansion",
            "verification",
        ):  # as generation; or no memory to speak of
            continue
        if stage.name == "generation" and isinstance(params.engine, VllmParams):
            room = (held or cluster.memory) - stage.memory["weights"]
            if room < rollout:
                problems.append(
                    f"generation: weights ({gigabytes(stage.memory['weights'])}) and one rollout's kv cache "
                    f"({gigabytes(rollout)}) exceed the {gigabytes(held or cluster.memory)} of a {cluster.name} that "
                    "vLLM may take: raise engine.gpu_memory or engine.tensor_parallel"
                )
            elif room < rollout * params.engine.batch_size:
                notes.append(
                    f"a vLLM server holds {math.floor(room / rollout)} rollouts of engine.max_tokens at a time; of "
                    f"the engine.batch_size = {params.engine.batch_size} that it may work on, long ones wait"
                )
            continue
        beside = held if stage.devices else 0.0
        if stage.bytes > cluster.memory - beside:
            largest = max(stage.memory, key=lambda part: stage.memory[part])
            also = f" beside the {gigabytes(held)} that vLLM keeps (engine.gpu_memory)" if beside else ""
            problems.append(
                f"{stage.name} needs {gigabytes(stage.bytes)} of {gigabytes(cluster.memory)} ({cluster.name}){also}; "
                f"most is {largest}, {gigabytes(stage.memory[largest])}: change {_advice(params, stage.name, largest)}"
                + (", or lower engine.gpu_memory" if beside and stage.bytes < 0.9 * cluster.memory else "")
            )
    return problems, notes


def _advice(params: Params, stage: str, part: str) -> str:
    """Keys that make a part smaller."""
    if stage in ("scoring", "refit") and part != "hidden states":
        alone = isinstance(params.predictor, FitParams) and params.predictor.batch_size == 1
        return "predictor.batch_size" if stage == "refit" and not alone else "engine.max_tokens or predictor.path"
    if stage == "generation":
        return {"weights": "policy.path, or engine.name to vllm"}.get(part, "engine.batch_size")
    if part == "activations" and not Placement.of(params).checkpointing:
        return "update.gradient_checkpointing"
    if part in ("activations", "logits") and params.update.micro_batch_tokens <= params.engine.max_tokens:
        return "engine.max_tokens (a path is never cut in the update)"
    if part in ("weights", "gradients", "optimiser") and not isinstance(params.update, DeepSpeedParams):
        return "update.name to deepspeed, which parts them among GPUs"
    return ADVICE[part]


def gigabytes(size: float) -> str:
    """Bytes as GB (1e9), or as MB where they are few."""
    return f"{size / 1e9:,.3g} GB" if size >= 1e8 else f"{size / 1e6:,.3g} MB"
