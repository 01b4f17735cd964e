"""Success predictors, by the names used in params.yaml. The model libraries are imported only when one is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from components.predictor.base import Predictor, Prefix, believe, prefixes_of

if TYPE_CHECKING:
    from components.config import Params


def _policy_features(params: Params, policy: Path) -> Predictor:
    """An ensemble of small heads on the policy's hidden states, its hesitation and the prompt's words."""
    from components.predictor.policy_features import PolicyFeatures

    return PolicyFeatures(params.predictor, policy)


def _encoder(params: Params, policy: Path) -> Predictor:
    """A small transformer from scratch on the history's tokens."""
    from components.predictor.transformer import Encoder

    return Encoder(params.predictor, policy)


def _backbone(params: Params, policy: Path) -> Predictor:
    """A pretrained transformer, fine-tuned on the history's tokens; the policy itself by default."""
    from components.predictor.transformer import Backbone

    return Backbone(params.predictor, policy)


def _beta(params: Params, policy: Path) -> Predictor:
    """Counts of the prompt's own earlier rollouts, with fading; it does not see turns."""
    from components.predictor.posterior import BetaPosterior

    return BetaPosterior(params.predictor, policy)


def _mixture(params: Params, policy: Path) -> Predictor:
    """`policy-features`, updated at roots by the prompt's own earlier rollouts."""
    from components.predictor.posterior import BetaPosterior, Mixture

    return Mixture(_policy_features(params, policy), BetaPosterior(params.predictor, policy))


def _oracle(params: Params, policy: Path) -> Predictor:
    """Rollouts of the policy from every prefix: for tests and ceilings, it samples more than it saves."""
    from components.policy import make_sampler
    from components.predictor.oracle import Oracle
    from components.verifiers import make_verifier

    verifier = make_verifier(params.environment)
    return Oracle(make_sampler(params, policy, 0), verifier, params.predictor.rollouts, params.run.seed)


PREDICTORS: dict[str, Callable[[Params, Path], Predictor]] = {
    "policy-features": _policy_features,
    "encoder": _encoder,
    "backbone": _backbone,
    "beta": _beta,
    "mixture": _mixture,
    "oracle": _oracle,
}


def make_predictor(params: Params, policy: Path, state: Path | None = None) -> Predictor:
    """The predictor that `params.predictor.name` registers, with its saved state where there is one."""
    predictor = PREDICTORS[params.predictor.name](params, policy)
    if state is not None:
        predictor.load(state)
    return predictor


__all__ = ["PREDICTORS", "Predictor", "Prefix", "believe", "make_predictor", "prefixes_of"]
