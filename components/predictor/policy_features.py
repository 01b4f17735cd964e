"""Success predictor on the policy's own hidden states at the turn boundary, with a Beta head.

The features know what the policy knows, and cost one forward pass over the histories. Beside the states at the turn
boundary stand their means over the history, which tell which words it holds: on flat rollouts of the embedded task that
raised the rank correlation at roots from 0.55 to 0.69 (one seed).

The head gives a Beta law of V rather than a number: a squared-error head that does not know answers 0.5, which is
exactly what an allocator takes for contrast, while a Beta law that does not know is flat, and its expected contrast is
small. The fit maximises the beta-binomial likelihood of k successes among n leaves, so a target counts as much as its
leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from components.allocation.base import Belief
from components.config import PredictorParams
from components.errors import UserError
from components.policy.checkpoint import load_model

MAX_CONCENTRATION = 200.0


class BetaHead(nn.Module):
    """Features to the two parameters of a Beta law.

    The last layer starts at zero, so an unfitted head answers Beta(1, 1) everywhere: it knows nothing and says so.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, hidden), nn.GELU())
        self.out = nn.Linear(hidden, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Alpha and beta, each (N,), from features (N, F)."""
        logit, log_concentration = self.out(self.body(features)).unbind(-1)
        concentration = (2.0 * log_concentration.clamp(-4, 6).exp()).clamp(max=MAX_CONCENTRATION)
        mean = torch.sigmoid(logit).clamp(1e-4, 1 - 1e-4)
        return mean * concentration, (1 - mean) * concentration


def beta_binomial_nll(alpha: Tensor, beta: Tensor, successes: Tensor, trials: Tensor) -> Tensor:
    """Negative log-likelihood of k successes among n, without the constant binomial coefficient; (N,)."""

    def log_beta(a: Tensor, b: Tensor) -> Tensor:
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    return log_beta(alpha, beta) - log_beta(alpha + successes, beta + trials - successes)


class PolicyFeatures:
    """See the module's text. Implements `components.predictor.base.Predictor`.

    Args:
        settings: Size and fit of the head.
        policy: Checkpoint whose hidden states are the features.
    """

    def __init__(self, settings: PredictorParams, policy: Path) -> None:
        self.settings = settings
        self.model: Any = load_model(policy).eval()
        config = self.model.config
        self.width = 2 * (config.num_hidden_layers + 1) * config.hidden_size
        with torch.random.fork_rng():  # the same first head for every run, and no one else's draws disturbed
            torch.manual_seed(0)
            self.head = BetaHead(self.width, settings.hidden)

    def predict(self, prefixes: Sequence[list[int]]) -> Belief:
        with torch.inference_mode():
            alpha, beta = (x.double().numpy() for x in self.head(self.features(prefixes)))
        return Belief(alpha / (alpha + beta), alpha + beta)

    def fit(
        self, prefixes: Sequence[list[int]], targets: np.ndarray, weights: np.ndarray, seed: int
    ) -> dict[str, float]:
        if not len(prefixes):
            return {"fit_loss": float("nan"), "fit_prefixes": 0.0}
        features = self.features(prefixes)
        trials = torch.tensor(weights, dtype=torch.float32)
        successes = torch.tensor(targets, dtype=torch.float32) * trials
        generator = torch.Generator().manual_seed(seed % 2**31)
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=self.settings.learning_rate, weight_decay=0.01)
        losses = []
        for _ in range(self.settings.steps):
            rows = torch.randperm(len(features), generator=generator)[: self.settings.batch_size]
            alpha, beta = self.head(features[rows])
            loss = beta_binomial_nll(alpha, beta, successes[rows], trials[rows]).sum() / trials[rows].sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError("the predictor's loss is not finite; lower predictor.learning_rate")
        return {"fit_loss": float(np.mean(losses[-10:])), "fit_prefixes": float(len(prefixes))}

    @torch.inference_mode(False)
    @torch.no_grad()
    def features(self, prefixes: Sequence[list[int]], batch_size: int = 128) -> Tensor:
        """Hidden states of every layer at each prefix's last token, and their mean over its tokens, (N, F).

        A prefix of another one in the list is read off that one's forward pass, so all prefixes of a rollout cost one.
        """
        order = sorted(range(len(prefixes)), key=lambda i: prefixes[i])
        host = list(range(len(prefixes)))  # in sorted order a prefix stands right before what extends it
        for here, after in zip(reversed(order[:-1]), reversed(order[1:]), strict=True):
            if prefixes[after][: len(prefixes[here])] == prefixes[here]:
                host[here] = host[after]
        hosts = sorted(set(host), key=lambda i: len(prefixes[i]))
        out = torch.empty(len(prefixes), self.width)
        guests: dict[int, list[int]] = {}
        for index, owner in enumerate(host):
            guests.setdefault(owner, []).append(index)
        for begin in range(0, len(hosts), batch_size):
            batch = hosts[begin : begin + batch_size]
            tokens = torch.zeros(len(batch), max(len(prefixes[i]) for i in batch), dtype=torch.long)
            for row, i in enumerate(batch):
                tokens[row, : len(prefixes[i])] = torch.tensor(prefixes[i])
            states = self.model.get_decoder()(
                input_ids=tokens, output_hidden_states=True, use_cache=False
            ).hidden_states
            last = torch.cat(states, dim=-1)
            mean = last.cumsum(1) / torch.arange(1, last.shape[1] + 1)[:, None]
            stacked = torch.cat([last, mean], dim=-1)
            for row, i in enumerate(batch):
                for guest in guests[i]:
                    out[guest] = stacked[row, len(prefixes[guest]) - 1]
        return out

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        save_file(self.head.state_dict(), path / "head.safetensors")

    def load(self, path: Path) -> None:
        try:
            self.head.load_state_dict(load_file(path / "head.safetensors"))
        except Exception as error:  # safetensors and torch raise several kinds; none may pass for a fresh predictor
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}: the predictor's state is missing or damaged ({reason})") from error
