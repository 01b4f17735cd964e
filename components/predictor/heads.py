"""From features to a distribution of V: an ensemble of small networks that answer with Beta distributions.

A squared-error head that does not know answers 0.5, which is exactly what an allocator takes for contrast. A Beta
distribution that does not know is flat, and its expected contrast is small. The fit maximises the beta-binomial
likelihood of k successes among n rollouts, so a label counts as much as its rollouts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from components.allocation.anchors import Belief
from components.errors import UserError
from components.predictor.base import FitParams, Prefix

MAX_CONCENTRATION = 200.0

logger = logging.getLogger("trace")


class BetaEnsemble(nn.Module):
    """Networks with one hidden layer, all evaluated at once.

    The last layer starts at zero, so an unfitted head answers Beta(1, 1) everywhere: it knows nothing, and says so.

    Args:
        features: F.
        hidden: Hidden units of each member.
        members: E.
        hide: Number of first features that every other member does not see, from the second on.
    """

    def __init__(self, features: int, hidden: int, members: int, hide: int = 0) -> None:
        super().__init__()
        self.hide, self.members, self.hidden = hide, members, hidden
        weight = 2 * torch.rand(members, features, hidden) - 1
        weight[0::2] /= features**0.5
        weight[1::2] /= (features - hide) ** 0.5
        # The members side by side, as columns of one matrix: one product for all. What only every other member sees has
        # a matrix of its own.
        self.inner_hidden = nn.Parameter(weight[0::2, :hide].transpose(0, 1).flatten(1).contiguous())
        self.inner = nn.Parameter(weight[:, hide:].transpose(0, 1).flatten(1).contiguous())
        self.inner_bias = nn.Parameter(torch.zeros(members * hidden))
        self.outer = nn.Parameter(torch.zeros(members, hidden, 2))
        self.outer_bias = nn.Parameter(torch.zeros(members, 1, 2))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and concentration of each member's Beta distribution, both (E, A), from features (A, F)."""
        inner = torch.addmm(self.inner_bias, features[:, self.hide :], self.inner).view(-1, self.members, self.hidden)
        if self.hide:
            seen = features[:, : self.hide] @ self.inner_hidden
            inner[:, 0::2] += seen.view(-1, (self.members + 1) // 2, self.hidden)
        hidden = nn.functional.gelu(inner).transpose(0, 1)
        return mean_and_concentration(hidden @ self.outer + self.outer_bias)


def mean_and_concentration(output: Tensor) -> tuple[Tensor, Tensor]:
    """Reads two outputs (..., 2) as a Beta distribution: logit of its mean, log of half its concentration."""
    concentration = (2.0 * output[..., 1].clamp(-4, 6).exp()).clamp(max=MAX_CONCENTRATION)
    return torch.sigmoid(output[..., 0]).clamp(1e-4, 1 - 1e-4), concentration


def beta_binomial_nll(mean: Tensor, concentration: Tensor, successes: Tensor, trials: Tensor) -> Tensor:
    """Negative log-likelihood of k successes among n under Beta distributions, without the binomial coefficient."""
    alpha, beta = mean * concentration, (1 - mean) * concentration

    def log_beta(a: Tensor, b: Tensor) -> Tensor:
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    return log_beta(alpha, beta) - log_beta(alpha + successes, beta + trials - successes)


def mixture_belief(mean: Tensor, concentration: Tensor) -> Belief:
    """The Beta distribution with mean and variance of the equal mixture of E distributions, from (E, N).

    Its variance is the mean of the variances plus the variance of the means: what the members disagree about is not
    known. Where a number is NaN, the belief is that of one who knows nothing, and a warning says so.
    """
    mean_EA, concentration_EA = mean.double().numpy(), concentration.double().numpy()
    mean_A = mean_EA.mean(0)
    variance_A = (mean_EA * (1 - mean_EA) / (1 + concentration_EA)).mean(0) + mean_EA.var(0)
    concentration_A = np.maximum(mean_A * (1 - mean_A) / variance_A - 1, 1e-3)
    lost_A = np.isnan(mean_A) | np.isnan(concentration_A)
    if lost_A.any():
        logger.warning(
            "%d of %d beliefs of the predictor are no numbers; they count as ignorance", lost_A.sum(), len(lost_A)
        )
        mean_A, concentration_A = np.where(lost_A, 0.5, mean_A), np.where(lost_A, 2.0, concentration_A)
    return Belief(mean_A, concentration_A)


def fit_beta_binomial(
    module: nn.Module,
    beliefs: Callable[[Tensor], tuple[Tensor, Tensor]],
    prefixes: Sequence[Prefix],
    successes: np.ndarray,
    trials: np.ndarray,
    params: FitParams,
    seed: int,
    max_norm: float | None = None,
) -> dict[str, float]:
    """Maximises the beta-binomial likelihood of the labels (App. E.6, with this likelihood for the squared error).

    A fit that diverges is undone, with a warning: the predictor only says where rollouts go, and a run of days must not
    end by it.

    Args:
        module: What is fitted.
        beliefs: Mean and concentration at some of the prefixes, given their indices (B,); both (B,), or (E, B) of an
            ensemble, whose members are fitted each on its own.
        prefixes: Where the labels are.
        successes, trials: k successes among n rollouts at each prefix; (A,).
        params: Steps, batch, rates, and the weight of a rollout at a root.
        seed: Decides which prefixes are drawn.
        max_norm: Gradients are scaled down to this norm.

    Returns:
        `fit_loss`, the mean loss per rollout over the last ten steps (NaN if nothing was fitted), and `fit_prefixes`.
    """
    loss_of_fit = float("nan")
    if prefixes:
        k_A, n_A = (torch.tensor(each, dtype=torch.float32) for each in (successes, trials))
        weight_A = torch.tensor([params.root_weight if p.turn == 0 else 1.0 for p in prefixes])
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, fused=True
        )
        generator, losses = torch.Generator().manual_seed(seed % 2**31), []
        before = {name: weight.clone() for name, weight in module.state_dict().items()}
        for _ in range(params.steps):
            rows = torch.randint(len(prefixes), (min(params.batch_size, len(prefixes)),), generator=generator)
            k, n, weight = k_A[rows], n_A[rows], weight_A[rows]
            loss = (beta_binomial_nll(*beliefs(rows), k, n) * weight).sum(-1) / (n * weight).sum()
            optimizer.zero_grad()
            loss.sum().backward()  # type: ignore[no-untyped-call]
            if max_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_norm)
            optimizer.step()
            losses.append(float(loss.detach().mean()))
        if np.isfinite(losses[-1]) and all(torch.isfinite(weight).all() for weight in module.parameters()):
            loss_of_fit = float(np.mean(losses[-10:]))
        else:
            module.load_state_dict(before)
            logger.warning(
                "the predictor's loss is not finite; its fit was undone: try a lower predictor.learning_rate"
            )
    return {"fit_loss": loss_of_fit, "fit_prefixes": float(len(prefixes))}


def save_state(module: nn.Module, file: Path) -> None:
    """Writes a module's weights as safetensors."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in module.state_dict().items()}, file)


def load_state(module: nn.Module, file: Path) -> None:
    """Reads what `save_state` wrote.

    Raises:
        UserError: if the file is missing or damaged, or belongs to a module of another size.
    """
    try:
        module.load_state_dict(load_file(file))
        if bad := [name for name, weight in module.named_parameters() if not torch.isfinite(weight).all()]:
            raise ValueError(f"{bad[0]} holds NaN or infinities")
    except Exception as error:  # safetensors and torch raise several kinds; none may pass for a fresh predictor
        reason = str(error).splitlines()[0]
        raise UserError(f"{file.parent}: the predictor's state is missing or damaged ({reason})") from error
