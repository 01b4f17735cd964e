"""The stages of an iteration: what each needs on its devices, how many tokens it handles, how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from components.allocation.arms import ARMS
from components.params.root import Params
from components.planning import memory
from components.planning.hardware import Cluster
from components.planning.memory import Layout, Parts
from components.planning.models import Model

# Assumed share of the peak (model FLOP utilisation; Chowdhery et al. 2022, arXiv 2204.02311, section 4.1). Learning:
# Llama 3 reports 38 to 43 % on H100s (Grattafiori et al. 2024, arXiv 2407.21783, Table 4); long, uneven rollouts get
# less. Sampling reads all weights for every token: its share is an assumption. The predictor computes in fp32, whose
# peak is a fifteenth of the bfloat16 one on these GPUs (same data sheets). A CPU's peak is its fp32 one.
UTILISATION = {"sample": 0.15, "predict": 0.05, "update": 0.35}
UTILISATION_CPU = {"sample": 0.15, "predict": 0.30, "update": 0.30}
VERIFICATIONS = 200.0  # a second and process: the slowest verifier measured (bench/results.json)
WRITING = 1e9  # bytes a second to disk
FOREST_BYTES = 17.0  # per tree token, all Parquet files of an iteration together; the default run had 16.1 to 18.2

# What makes a part smaller, where neither engine nor trainer names keys of its own.
KEYS = {
    "generation": {"weights": "policy.path, or engine.name to one that computes on GPUs"},
    "update": {"activations": "update.micro_batch_tokens", "logits": "update.micro_batch_tokens"},
    "scoring": {"hidden states": "predictor.name (some keep no hidden states of the policy)"},
    "refit": {"hidden states": "predictor.name (some keep no hidden states of the policy)", "head": "predictor.hidden"},
}
OTHER_KEYS = {
    "generation": "engine.batch_size",
    "update": "update.name to a trainer that parts them among GPUs",
    "checkpoint": "update.name to a trainer that parts them among GPUs",
    "scoring": "engine.max_tokens or predictor.path",
    "refit": "engine.max_tokens or predictor.path",
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
        policy: Shape of its policy.
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

    policy: Model
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


def plan(params: Params, cluster: Cluster, rollout_tokens: float | None = None) -> Plan:
    """What a run needs, and whether it fits.

    Memory is planned for rollouts of `engine.max_tokens`, tokens and time for those of mean length.

    Args:
        params: The run.
        cluster: What it would run on.
        rollout_tokens: Mean length of a whole rollout; None: half of `engine.max_tokens`.

    Raises:
        UserError: if the shape of one of its models is not known.
    """
    run = Layout.of(params)
    policy, reader = run.policy, run.predictor.own or (run.policy if run.predictor.units_on_policy else None)
    length = rollout_tokens if rollout_tokens is not None else params.engine.max_tokens / 2
    factual, further = rollouts_of(params)
    leaves, prompt, pool = factual + further, memory.PROMPT * length, params.allocation.pool
    tree = (factual + further / 2) * length  # a continuation starts half-way in the mean, App. E.5
    sampling = memory.sampling(run, prompt)
    rollout = sampling["kv cache"] / params.engine.batch_size
    if held := run.engine.held_share * cluster.memory:  # a paged cache makes do with what the engine may take
        sampling["kv cache"] = max(0.0, min(sampling["kv cache"], held - sampling["weights"]))
    workers = min(cluster.devices, run.engine.servers * run.engine.tensor_parallel)
    learners = min(cluster.devices, run.trainer.processes)

    def stage(name: str, parts: Parts, devices: int, tokens: float, flops: float, kind: str) -> Stage:
        share = (UTILISATION_CPU if cluster.is_cpu else UTILISATION)[kind]
        return Stage(name, parts, devices, tokens, flops, flops / (cluster.peak * devices * share))

    def read(tokens: float, mean: float) -> float:
        return tokens * reader.forward_flops(mean) if reader else 0.0

    def sampled(tokens: float) -> float:
        return tokens * policy.forward_flops(length)

    held_out = params.environment.val_prompts * params.evaluation.samples * length / params.evaluation.every
    kept = tree * (1 + params.predictor.replay)
    fitted = run.predictor.steps * run.predictor.batch * length / 2
    learning = (
        (fitted, 3 * read(fitted, length / 2)) if run.predictor.own else (kept if reader else 0.0, read(kept, length))
    )
    passes = 4 if params.update.gradient_checkpointing else 3  # backward costs two forward passes
    learned = params.update.epochs * (tree if params.update.packing != "flat" else leaves * length)
    checkpoint = memory.FP32 * (policy.parameters + 2 * run.trained)
    stages = [
        stage("evaluation", sampling, workers, held_out, sampled(held_out), "sample"),
        stage("scoring", memory.scoring(run, pool), 1, pool * prompt, read(pool * prompt, prompt), "predict"),
        stage("generation", sampling, workers, factual * length, sampled(factual * length), "sample"),
        stage("expansion", sampling, workers, further * length / 2,
              sampled(further * length / 2) + read(factual * length, length), "sample"),
        Stage("verification", {}, 0, 0.0, 0.0, leaves / VERIFICATIONS),
        stage("refit", memory.refit(run, leaves), 1, *learning, "predict"),
        stage("update", memory.update(run, leaves), learners, learned, passes * sampled(learned), "update"),
        Stage("checkpoint", memory.writing(run), 0, 0.0, 0.0, checkpoint / WRITING),
    ]  # fmt: skip
    # the newest ones (2 at least), the best, the one being written
    keep = min(params.run.iterations, max(2, params.run.keep_policies) + 1) + 1
    disk = {"policies": keep * checkpoint, "forests": params.run.iterations * tree * FOREST_BYTES}
    problems, notes = _fit(run, stages, cluster, rollout)
    return Plan(
        policy, stages, (factual, further), length, tree, leaves * length, params.run.iterations, disk, problems, notes
    )


def _fit(run: Layout, stages: list[Stage], cluster: Cluster, rollout: float) -> tuple[list[str], list[str]]:
    """What does not fit, and what is worth knowing; `rollout` are the bytes of one rollout's keys and values."""
    problems: list[str] = []
    notes: list[str] = []
    engine, trainer, held = run.engine, run.trainer, run.engine.held_share * cluster.memory
    servers = engine.servers * engine.tensor_parallel if held else 1
    for keys, wanted in ((engine.keys, servers), (trainer.keys, trainer.processes)):
        if wanted > cluster.devices and not cluster.is_cpu:
            problems.append(f"{keys['gpus']} = {wanted} is more than the GPUs, of which there are {cluster.devices}")
    on_gpu = {f"engine.name={run.params.engine.name}": engine.on_gpu}
    on_gpu[f"update.name={run.params.update.name}"] = trainer.on_gpu
    if not cluster.is_cpu and not all(on_gpu.values()):
        idle = " and ".join(name for name, there in on_gpu.items() if not there)
        notes.append(f"what computes on the CPU, whatever GPUs there are: {idle}")
    for stage in stages:
        on_host = stage.devices == 0 and not cluster.is_cpu
        if on_host or stage.name in ("evaluation", "expansion", "verification"):  # as generation; or nearly nothing
            continue
        if stage.name == "generation" and engine.cache_bytes is None:
            room = (held or cluster.memory) - stage.memory["weights"]
            if room < rollout:
                problems.append(
                    f"generation: weights ({gigabytes(stage.memory['weights'])}) and one rollout's kv cache "
                    f"({gigabytes(rollout)}) exceed the {gigabytes(held or cluster.memory)} of a {cluster.name} that "
                    f"the engine may take: raise {engine.keys['weights']}"
                )
            elif room < rollout * run.params.engine.batch_size:
                notes.append(
                    f"a server holds {math.floor(room / rollout)} rollouts of engine.max_tokens at a time; of the "
                    f"engine.batch_size = {run.params.engine.batch_size} that it may work on, long ones wait"
                )
            continue
        beside = held if stage.devices else 0.0
        if stage.bytes > cluster.memory - beside:
            largest = max(stage.memory, key=lambda part: stage.memory[part])
            also = f" beside the {gigabytes(held)} that the engine keeps ({engine.keys['held']})" if beside else ""
            problems.append(
                f"{stage.name} needs {gigabytes(stage.bytes)} of {gigabytes(cluster.memory)} ({cluster.name}){also}; "
                f"most is {largest}, {gigabytes(stage.memory[largest])}: change {_advice(run, stage.name, largest)}"
                + (f", or lower {engine.keys['held']}" if beside and stage.bytes < 0.9 * cluster.memory else "")
            )
    return problems, notes


def _advice(run: Layout, stage: str, part: str) -> str:
    """Keys that make a part smaller."""
    settings, longest = run.params.update, run.params.engine.max_tokens
    if stage == "update" and part == "activations" and not settings.gradient_checkpointing:
        return "update.gradient_checkpointing"
    if stage == "update" and part in ("activations", "logits") and settings.micro_batch_tokens <= longest:
        return "engine.max_tokens (a path is never cut in the update)"
    if stage == "refit" and run.predictor.own and run.predictor.batch > 1:
        return "predictor.batch_size"
    own = {"generation": run.engine.keys, "update": run.trainer.keys, "checkpoint": run.trainer.keys}
    return own.get(stage, {}).get(part) or KEYS.get(stage, {}).get(part) or OTHER_KEYS[stage]


def gigabytes(size: float) -> str:
    """Bytes as GB (1e9), or as MB where they are few."""
    return f"{size / 1e9:,.3g} GB" if size >= 1e8 else f"{size / 1e6:,.3g} MB"
