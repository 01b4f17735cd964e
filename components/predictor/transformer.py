"""`encoder` and `backbone`: a transformer of the predictor's own, trained end to end on the histories' tokens.

`encoder` starts from nothing and is small; `backbone` starts from any Hugging Face checkpoint that shares the policy's
vocabulary (a Qwen3-0.6B critic for a Qwen3-8B policy, as in the paper, App. E.6), or from the policy itself. Both are
causal, so all prefixes of a rollout are read off one pass, and both answer with a Beta distribution (`heads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

from components.allocation.anchors import Belief
from components.errors import UserError
from components.policy.checkpoint import load_model, load_tokenizer
from components.predictor.base import Predictor, Prefix
from components.predictor.heads import (
    fit_beta_binomial,
    load_state,
    mean_and_concentration,
    mixture_belief,
    save_state,
)
from components.predictor.shared import read


class _Network(nn.Module):
    """A causal decoder with two outputs at every position, both zero at first: Beta(1, 1)."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.out = nn.Linear(decoder.config.hidden_size, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Two outputs at every position, (B, T, 2), from right-padded token ids (B, T); on the CPU, as these are."""
        hidden = self.decoder(input_ids=tokens.to(self.out.weight.device), use_cache=False).last_hidden_state
        output: Tensor = self.out(hidden.float()).cpu()
        return output


class Encoder(Predictor):
    """A small transformer from scratch."""

    def __init__(self, params: Any, policy: Path) -> None:
        self.params = params
        with torch.random.fork_rng():  # the same first weights for every run, and no one else's draws disturbed
            torch.manual_seed(0)
            self.network = _Network(self._decoder(policy)).to("cuda" if torch.cuda.is_available() else "cpu")

    def _decoder(self, policy: Path) -> Any:
        hidden = self.params.hidden
        config = Qwen3Config(
            vocab_size=AutoConfig.from_pretrained(policy, trust_remote_code=False).vocab_size,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=self.params.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=2 * max(4, hidden // 8),
            initializer_range=0.1,
        )
        return Qwen3ForCausalLM(config).get_decoder()

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        self.network.eval()
        with torch.inference_mode():
            mean, concentration = self._read(prefixes)
        return mixture_belief(mean[None], concentration[None])

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        self.network.train()

        def beliefs(rows: Tensor) -> tuple[Tensor, Tensor]:
            return self._read([prefixes[i] for i in rows.tolist()])

        return fit_beta_binomial(self.network, beliefs, prefixes, successes, trials, self.params, seed, max_norm=1.0)

    def _read(self, prefixes: Sequence[Prefix]) -> tuple[Tensor, Tensor]:
        """Mean and concentration at the end of each prefix, both (A,)."""
        output = read(
            [p.token_ids for p in prefixes], 2, lambda part: self.network(part.tokens)[part.row_A, part.last_A]
        )
        return mean_and_concentration(output)

    def save(self, path: Path) -> None:
        save_state(self.network, path / "model.safetensors")

    def load(self, path: Path) -> None:
        load_state(self.network, path / "model.safetensors")


class Backbone(Encoder):
    """A pretrained transformer, fine-tuned (App. E.6); `predictor.path` names it, else it starts as the policy."""

    def _decoder(self, policy: Path) -> Any:
        if self.params.path is None:
            return load_model(policy).get_decoder()
        source = Path(self.params.path)
        model = load_model(source)
        if load_tokenizer(source).get_vocab() != load_tokenizer(policy).get_vocab():
            raise UserError(f"predictor.path={str(source)!r} has another vocabulary than the policy in {policy}")
        return model.get_decoder()
