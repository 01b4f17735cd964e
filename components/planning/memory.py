"""Bytes on one device in each stage, by what they hold. Upper bounds: every rollout as long as `engine.max_tokens`."""

from __future__ import annotations

from dataclasses import dataclass

from components.params.root import Params
from components.planning.models import Model
from components.policy.engines.transformers import TransformersParams
from components.policy.engines.vllm import VllmParams
from components.policy.trainers.deepspeed import DeepSpeedParams
from components.predictor.base import FitParams
from components.predictor.models.policy_features import PolicyFeaturesParams

FP32, BF16 = 4, 2
LOGITS_UPDATE = 12  # bytes per logit while a token is learned: scaled logits, log-softmax and its gradient, fp32
LOGITS_SAMPLING = (
    24  # bytes per logit in the embedded engine: logits and log-softmax in fp32, their exponentials in fp64
)
LIVE_WEIGHTS = 1e9  # weights that ZeRO-3 gathers at a time (stage3_max_live_parameters of DeepSpeed, by default)
PROMPT = 0.25  # assumed share of a rollout's tokens that are its prompt, where no logits are needed
READ_TOKENS = 16384  # padded tokens in one forward pass of a prediction, or one longer history

Parts = dict[str, float]


@dataclass(frozen=True)
class Placement:
    """How the work is laid out over devices, read from the parameters."""

    servers: int
    tensor_parallel: int
    held_share: float  # of a GPU's memory that each server of vLLM keeps to itself for the whole run
    processes: int
    zero_stage: int
    offload: bool
    checkpointing: bool
    mixed: bool
    lora_rank: int
    packed: bool

    @classmethod
    def of(cls, params: Params) -> Placement:
        engine, update = params.engine, params.update
        own = isinstance(engine, VllmParams) and isinstance(engine.servers, int)  # others' servers take no memory here
        zero = update if isinstance(update, DeepSpeedParams) else DeepSpeedParams()
        servers = 1
        if isinstance(engine, VllmParams):
            servers = len(engine.servers) if not isinstance(engine.servers, int) else max(1, engine.servers)
        return cls(
            servers=servers,
            tensor_parallel=engine.tensor_parallel if isinstance(engine, VllmParams) else 1,
            held_share=engine.gpu_memory if isinstance(engine, VllmParams) and own else 0.0,
            processes=zero.processes,
            zero_stage=zero.zero_stage,
            offload=zero.offload,
            checkpointing=update.gradient_checkpointing,
            mixed=update.dtype == "bf16",
            lora_rank=update.lora.rank if update.lora else 0,
            packed=update.packing != "flat",
        )


def sampling(params: Params, model: Model, place: Placement, prompt: float) -> Parts:
    """Memory of generation, expansion and evaluation. vLLM pages its cache, so it must hold one rollout at least."""
    rows = params.engine.batch_size
    tokens = rows * params.engine.max_tokens
    if isinstance(params.engine, VllmParams):
        wide = FP32 if params.engine.dtype == "float32" else BF16
        cache = model.cache_bytes(wide) / place.tensor_parallel
        return {"weights": wide * model.parameters / place.tensor_parallel, "kv cache": tokens * cache}
    assert isinstance(params.engine, TransformersParams)
    bound = 1e9 * params.engine.cache_gb
    return {
        "weights": FP32 * model.parameters,
        "kv cache": 2.0 * min(tokens * model.cache_bytes(FP32), bound),  # this call's, and what earlier ones left
        "logits": LOGITS_SAMPLING * rows * model.vocabulary,
        "activations": FP32 * rows * prompt * (3 * model.intermediate + 4 * model.hidden),
    }


def update(params: Params, model: Model, place: Placement, leaves: int) -> Parts:
    """Memory of a policy step on one device: Rajbhandari et al. 2020 (arXiv 1910.02054), with weights kept in fp32."""
    n = place.processes
    parted = [n if place.zero_stage >= stage else 1 for stage in (1, 2, 3)]
    trained = trained_parameters(model, place.lora_rank)
    master = FP32 if place.zero_stage >= 1 else 0  # ZeRO keeps fp32 weights of its own beside the module's
    longest = params.engine.max_tokens
    tokens = min(max(params.update.micro_batch_tokens, longest), leaves * longest)
    parts = {
        "weights": FP32 * model.parameters / parted[2],
        "gradients": FP32 * trained / parted[1],
        "optimiser": 0.0 if place.offload else (2 * FP32 + master) * trained / parted[0],
        "activations": tokens * model.activation_bytes(place.mixed, place.checkpointing),
        "logits": LOGITS_UPDATE * (1 - PROMPT) * tokens * model.vocabulary,
    }
    if place.zero_stage == 3:
        parts["gathered weights"] = FP32 * min(LIVE_WEIGHTS, model.parameters)
    return parts


def writing(model: Model, place: Placement) -> Parts:
    """Host memory of writing a checkpoint in one process: the whole weights, and copies of its share of the moments."""
    trained = trained_parameters(model, place.lora_rank)
    if place.processes == 1:  # what the update leaves behind is still there
        return {"weights": FP32 * model.parameters, "gradients": FP32 * trained, "optimiser": 4.0 * FP32 * trained}
    return {"weights": FP32 * model.parameters, "optimiser": 2.0 * FP32 * trained / place.processes}


def scoring(params: Params, policy: Model, predictor: Model | None, rows: int) -> Parts:
    """Memory of a prediction on `rows` histories."""
    longest = params.engine.max_tokens
    tokens = min(rows * longest, max(READ_TOKENS, longest))
    if predictor is not None:
        inner = FP32 * tokens * (3 * predictor.intermediate + 4 * predictor.hidden)
        return {"weights": FP32 * predictor.parameters, "activations": inner}
    if not isinstance(params.predictor, PolicyFeaturesParams):
        return {}
    states = 2 * (policy.layers + 1) * policy.hidden  # of every layer, and the same side by side
    return {
        "weights": FP32 * policy.parameters,
        "hidden states": FP32 * tokens * (states + 3.0 * policy.intermediate),
    }


def refit(params: Params, policy: Model, predictor: Model | None, rows: int) -> Parts:
    """Memory of a refit on the prefixes of `rows` rollouts."""
    longest = params.engine.max_tokens
    if predictor is None:
        parts = scoring(params, policy, None, rows)
        if isinstance(params.predictor, PolicyFeaturesParams):
            head = params.predictor.members * params.predictor.hidden * 2 * (policy.layers + 1) * policy.hidden
            parts["head"] = 5.0 * FP32 * head  # weights, what a member sees of them, gradients, two moments
        return parts
    assert isinstance(params.predictor, FitParams)
    tokens = min(params.predictor.batch_size, rows) * longest
    return {
        "weights": FP32 * predictor.parameters,
        "gradients": FP32 * predictor.parameters,
        "optimiser": 2.0 * FP32 * predictor.parameters,
        "activations": tokens * predictor.activation_bytes(False, False),
    }


def trained_parameters(model: Model, lora_rank: int) -> int:
    """Parameters that get gradients: all, or those of adapters at every matrix of a layer (Hu et al. 2021)."""
    if lora_rank == 0:
        return model.parameters
    ends = 4 * model.hidden + 2 * model.query + 2 * model.key + 3 * (model.hidden + model.intermediate)
    return model.layers * lora_rank * ends
