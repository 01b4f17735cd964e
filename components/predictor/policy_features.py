"""`policy-features`: what the policy's own hidden states, its hesitation and the prompt's words say of V.

Four kinds of features, for one forward pass over the histories and no backward pass through the policy:

- the hidden states of every layer at the turn boundary, and their means over the prompt;
- how sure the policy was of what it sampled (log-probabilities kept from sampling): a turn that the policy sampled
  against its own odds is where a rollout goes wrong;
- how long the history is;
- how often each token stands in the prompt, hashed to a few columns: the hidden states move with every update, the
  words stay.

Every other member of the ensemble sees no hidden states, so that members differ in more than their first weights.
docs/predictor.md says what each part brought.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from components.allocation.anchors import Belief
from components.policy.checkpoint import shared_model
from components.predictor.base import Predictor, Prefix
from components.predictor.heads import BetaEnsemble, fit_beta_binomial, load_state, mixture_belief, save_state
from components.predictor.shared import Pass, read

if TYPE_CHECKING:
    from components.predictor.models.policy_features import PolicyFeaturesParams

WORD_COLUMNS = 256
CONFIDENCE_COLUMNS = 5
SHORT_PROMPT = 16


class PolicyFeatures(Predictor):
    """See the module's text. Implements `components.predictor.base.Predictor`.

    Args:
        params: Size and fit of the head.
        policy: Checkpoint whose hidden states are features.
    """

    def __init__(self, params: PolicyFeaturesParams, policy: Path) -> None:
        self.params = params
        self.model: Any = shared_model(policy)
        config = self.model.config
        self.width = 2 * (config.num_hidden_layers + 1) * config.hidden_size
        with torch.random.fork_rng():  # the same first head for every run, and no one else's draws disturbed
            torch.manual_seed(0)
            width = self.width + CONFIDENCE_COLUMNS + WORD_COLUMNS
            self.head = BetaEnsemble(width, params.hidden, params.members, hide=self.width)

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        with torch.inference_mode():
            return mixture_belief(*self.head(self.features(prefixes)))

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        features = self.features(prefixes)
        return fit_beta_binomial(
            self.head, lambda rows: self.head(features[rows]), prefixes, successes, trials, self.params, seed
        )

    @torch.inference_mode(False)
    @torch.no_grad()
    def features(self, prefixes: Sequence[Prefix]) -> Tensor:
        """All features, (N, F); the hidden states are normalised over their columns."""
        states = self._states(prefixes)
        side = torch.tensor([_confidence(p) for p in prefixes]).view(-1, CONFIDENCE_COLUMNS)
        words = torch.zeros(len(prefixes), WORD_COLUMNS)
        for row, prefix in enumerate(prefixes):
            tokens = torch.tensor(prefix.token_ids[: _prompt_length(prefix)])
            scale = min(1.0, SHORT_PROMPT / len(tokens))  # long prompts count in shares
            words[row] = torch.bincount(tokens % WORD_COLUMNS, minlength=WORD_COLUMNS) * scale
        return torch.cat([nn.functional.layer_norm(states, states.shape[1:]), side, words], dim=-1)

    def _states(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Hidden states of every layer at each prefix's last token, and their means over its prompt."""
        prompt_N = torch.tensor([_prompt_length(p) for p in prefixes])

        def at(part: Pass) -> Tensor:
            output = self.model.get_decoder()(input_ids=part.tokens, output_hidden_states=True, use_cache=False)
            states = torch.cat(output.hidden_states, dim=-1)
            prompts = list(zip(part.row_N.tolist(), prompt_N[part.index_N].tolist(), strict=True))
            means = {(row, length): states[row, :length].mean(0) for row, length in set(prompts)}
            return torch.cat([states[part.row_N, part.last_N], torch.stack([means[p] for p in prompts])], dim=-1)

        return read([p.token_ids for p in prefixes], self.width, at)

    def save(self, path: Path) -> None:
        save_state(self.head, path / "head.safetensors")

    def load(self, path: Path) -> None:
        load_state(self.head, path / "head.safetensors")


def _prompt_length(prefix: Prefix) -> int:
    """Tokens before the first sampled one."""
    return prefix.is_action.index(True) if True in prefix.is_action else len(prefix.token_ids)


def _confidence(prefix: Prefix) -> list[float]:
    """Sum, mean and least of the sampled tokens' log-probabilities, and the lengths of what was sampled and of all."""
    sampled = [p for p, acted in zip(prefix.logprobs, prefix.is_action, strict=True) if acted]
    total = sum(sampled)
    return [
        float(np.log1p(max(-total, 0.0))),
        total / max(len(sampled), 1),
        min(sampled, default=0.0),
        float(np.log1p(len(sampled))),
        float(np.log1p(len(prefix.token_ids))),
    ]
