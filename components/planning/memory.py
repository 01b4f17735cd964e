"""Bytes on one device in each stage, by what they hold. Upper bounds: every rollout as long as `engine.max_tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from components.params.root import Params
from components.planning.models import Model, model_of
from components.policy.engines import ENGINES
from components.policy.engines.base import EngineLayout
from components.policy.trainers import TRAINERS
from components.policy.trainers.base import TrainerLayout
from components.predictor.base import PredictorLayout
from components.predictor.models import PREDICTORS

FP32 = 4
LOGITS_UPDATE = 12  # bytes per logit while a token is learned: scaled logits, log-softmax and its gradient, fp32
LOGITS_SAMPLING = 24  # the same in the run's own process: logits and log-softmax in fp32, their exponentials in fp64
LIVE_WEIGHTS = 1e9  # weights that ZeRO-3 gathers at a time (stage3_max_live_parameters of DeepSpeed, by default)
PROMPT = 0.25  # assumed share of a rollout's tokens that are its prompt, where no logits are needed
READ_TOKENS = 16384  # padded tokens in one forward pass of a prediction, or one longer history

Parts = dict[str, float]


@dataclass(frozen=True)
class Layout:
    """A run and how its parts lie on devices, as they say of themselves.

    Attributes:
        params: The run.
        policy: Shape of its policy.
        engine, trainer, predictor: What these say.
    """

    params: Params
    policy: Model
    engine: EngineLayout
    trainer: TrainerLayout
    predictor: PredictorLayout

    @classmethod
    def of(cls, params: Params) -> Layout:
        """Raises `UserError` if the shape of a model is not known."""
        return cls(
            params,
            model_of(params.policy.path, params.policy),
            ENGINES[params.engine.name].layout(params.engine),
            TRAINERS[params.update.name].layout(params.update),
            PREDICTORS[params.predictor.name].layout(params.predictor, params.policy),
        )

    @property
    def trained(self) -> int:
        """Parameters that get gradients: all, or those of adapters at every matrix of a layer (Hu et al. 2021)."""
        lora, model = self.params.update.lora, self.policy
        if lora is None:
            return model.parameters
        ends = 4 * model.hidden + 2 * model.query + 2 * model.key + 3 * (model.hidden + model.intermediate)
        return model.layers * lora.rank * ends


def sampling(run: Layout, prompt: float) -> Parts:
    """Memory of generation, expansion and evaluation; a paged cache must hold one rollout at least."""
    engine, model, rows = run.engine, run.policy, run.params.engine.batch_size
    weights = engine.number_bytes * model.parameters / engine.tensor_parallel
    tokens = rows * run.params.engine.max_tokens
    cache = tokens * model.cache_bytes(engine.number_bytes) / engine.tensor_parallel
    if engine.cache_bytes is None:
        return {"weights": weights, "kv cache": cache}
    return {
        "weights": weights,
        "kv cache": 2.0 * min(cache, engine.cache_bytes),  # this call's, and what earlier ones left
        "logits": LOGITS_SAMPLING * rows * model.vocabulary,
        "activations": FP32 * rows * prompt * (3 * model.intermediate + 4 * model.hidden),
    }


def update(run: Layout, leaves: int) -> Parts:
    """Memory of a policy step on one device: Rajbhandari et al. 2020 (arXiv 1910.02054), with weights kept in fp32."""
    settings, stage, model, longest = (
        run.params.update,
        run.trainer.zero_stage,
        run.policy,
        run.params.engine.max_tokens,
    )
    moments, gradients, weights = (run.trainer.processes if stage >= least else 1 for least in (1, 2, 3))
    master = FP32 if stage >= 1 else 0  # ZeRO keeps fp32 weights of its own beside the module's
    tokens = min(max(settings.micro_batch_tokens, longest), leaves * longest)
    activations = model.activation_bytes(settings.dtype == "bf16", settings.gradient_checkpointing)
    parts = {
        "weights": FP32 * model.parameters / weights,
        "gradients": FP32 * run.trained / gradients,
        "optimiser": 0.0 if run.trainer.offload else (2 * FP32 + master) * run.trained / moments,
        "activations": tokens * activations,
        "logits": LOGITS_UPDATE * (1 - PROMPT) * tokens * model.vocabulary,
    }
    return parts | ({"gathered weights": FP32 * min(LIVE_WEIGHTS, model.parameters)} if stage == 3 else {})


def writing(run: Layout) -> Parts:
    """Host memory of writing a checkpoint in one process: the whole weights, and copies of its share of the moments."""
    weights, trained = FP32 * run.policy.parameters, FP32 * run.trained
    if run.trainer.processes == 1:  # what the update leaves behind is still there
        return {"weights": weights, "gradients": trained, "optimiser": 4.0 * trained}
    return {"weights": weights, "optimiser": 2.0 * trained / run.trainer.processes}


def scoring(run: Layout, rows: float) -> Parts:
    """Memory of a prediction on `rows` histories."""
    own, policy, longest = run.predictor.own, run.policy, run.params.engine.max_tokens
    tokens = min(rows * longest, max(READ_TOKENS, longest))
    if own is not None:
        inner = FP32 * tokens * (3 * own.intermediate + 4 * own.hidden)
        return {"weights": FP32 * own.parameters, "activations": inner}
    if not run.predictor.units_on_policy:
        return {}
    states = 2 * (policy.layers + 1) * policy.hidden  # of every layer, and the same side by side
    return {"weights": FP32 * policy.parameters, "hidden states": FP32 * tokens * (states + 3.0 * policy.intermediate)}


def refit(run: Layout, rows: float) -> Parts:
    """Memory of a refit on the prefixes of `rows` rollouts."""
    own, policy = run.predictor.own, run.policy
    if own is None:
        head = run.predictor.units_on_policy * 2 * (policy.layers + 1) * policy.hidden
        # weights, what a member sees of them, gradients, two moments
        return scoring(run, rows) | ({"head": 5.0 * FP32 * head} if head else {})
    tokens = min(run.predictor.batch or inf, rows) * run.params.engine.max_tokens
    return {
        "weights": FP32 * own.parameters,
        "gradients": FP32 * own.parameters,
        "optimiser": 2.0 * FP32 * own.parameters,
        "activations": tokens * own.activation_bytes(False, False),
    }
