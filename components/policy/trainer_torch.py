"""The one-process trainer: clipped token loss over the forest's terms, Adam, checkpoints in Hugging Face form.

What it leaves out on purpose: a KL penalty and an entropy bonus (App. E.4 uses none).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from components.config import UpdateParams
from components.errors import UserError
from components.policy.base import Update
from components.policy.checkpoint import load_model
from components.tree.advantages import Credit, credit
from components.tree.forest import Forest


@dataclass
class Row:
    """One path of the forest as the model sees it; lists of equal length. Weight 0: the token is not trained."""

    token_ids: list[int]
    old_logprob: list[float]
    advantage: list[float]
    weight: list[float]


def clipped_loss(
    logprob: Tensor, old_logprob: Tensor, advantage: Tensor, weight: Tensor, low: float, high: float
) -> Tensor:
    """- Σ w min(ρ A, clip(ρ, 1 - low, 1 + high) A), ρ = exp(logprob - old_logprob); all (K,), K over (token, leaf)."""
    ratio = torch.exp(logprob - old_logprob)
    return -(weight * torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)).sum()


class TorchTrainer:
    """See the module's text. Implements `components.policy.base.Trainer`.

    Args:
        settings: Advantage, loss and optimiser.
        temperature: The engine's sampling temperature: scored log-probabilities belong to the sampled distribution.
    """

    def __init__(self, settings: UpdateParams, temperature: float) -> None:
        self.settings, self.temperature = settings, temperature

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        """Raises `FloatingPointError` if the loss or the gradient is not finite: nothing is written then."""
        model = load_model(policy).eval()  # gradients without dropout: the sampling policy had none
        optimizer = torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)
        if not fresh:
            _load_optimizer(optimizer, model, policy)
        terms = credit(forest, self.settings.advantage)
        rng = np.random.default_rng(seed)
        steps: list[dict[str, float]] = []
        for _ in range(self.settings.epochs):
            for part in _minibatches(forest, terms, self.settings.minibatches, rng):
                steps.append(self._step(model, optimizer, build_rows(forest, part)))
        target.mkdir(parents=True)
        model.save_pretrained(target)
        AutoTokenizer.from_pretrained(policy).save_pretrained(target)
        _save_optimizer(optimizer, model, target)
        names = ("loss", "grad_norm", "ratio_mean", "clip_fraction", "kl")
        metrics = {name: float(np.mean([s[name] for s in steps])) if steps else math.nan for name in names}
        return Update(
            metrics | {"optimizer_steps": float(len(steps))} | terms.metrics(), terms.advantage_N(len(forest)).tolist()
        )

    def _step(self, model: Any, optimizer: torch.optim.Optimizer, rows: list[Row]) -> dict[str, float]:
        optimizer.zero_grad(set_to_none=True)
        loss, ratios, kls, clipped, count = 0.0, 0.0, 0.0, 0.0, 0
        low, high = self.settings.clip_low, self.settings.clip_high
        for batch in _micro_batches(rows, self.settings.micro_batch_tokens):
            logprob, old_logprob, advantage, weight = self.score(model, batch)
            part = clipped_loss(logprob, old_logprob, advantage, weight, low, high)
            part.backward()  # type: ignore[no-untyped-call]
            delta = (logprob - old_logprob).detach()
            ratio = delta.exp()
            loss += float(part.detach())
            ratios, kls, count = ratios + float(ratio.sum()), kls + float((ratio - 1 - delta).sum()), count + len(delta)
            clipped += float(((ratio < 1 - low) | (ratio > 1 + high)).sum())
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm))
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise FloatingPointError(
                f"the policy's loss ({loss}) or gradient norm ({norm}) is not finite; the step was not taken"
            )
        optimizer.step()
        return {
            "loss": loss,
            "grad_norm": norm,
            "ratio_mean": ratios / count,
            "clip_fraction": clipped / count,
            "kl": kls / count,
        }

    def score(self, model: Any, rows: list[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probabilities of the trained tokens, their old ones, advantages and weights; each (K,).

        A token is predicted from the position before it, also across the border of two nodes. Padding stands on the
        right of a causal model, so it is never attended to.
        """
        width = max(len(row.token_ids) for row in rows)

        def pad(lists: list[list[Any]], dtype: torch.dtype) -> Tensor:
            return torch.tensor([values + [0] * (width - len(values)) for values in lists], dtype=dtype)

        tokens = pad([r.token_ids for r in rows], torch.long)
        old_logprob, advantage, weight = (
            pad([getattr(r, name) for r in rows], torch.float32) for name in ("old_logprob", "advantage", "weight")
        )
        row, column = torch.nonzero(weight, as_tuple=True)
        hidden = model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state[row, column - 1]
        logits = model.get_output_embeddings()(hidden).float() / self.temperature
        logprob = torch.log_softmax(logits, dim=-1).gather(1, tokens[row, column, None])[:, 0]
        return logprob, old_logprob[row, column], advantage[row, column], weight[row, column]


def build_rows(forest: Forest, terms: Credit) -> list[Row]:
    """One row per leaf that has terms: its path up to the last trained token, each term at its node's action tokens."""
    by_leaf: dict[int, dict[int, tuple[float, float]]] = {}
    for leaf, node, advantage, weight in zip(
        terms.leaf_K, terms.node_K, terms.advantage_K, terms.weight_K, strict=True
    ):
        by_leaf.setdefault(int(leaf), {})[int(node)] = (float(advantage), float(weight))
    rows = []
    for leaf, by_node in by_leaf.items():
        row, end = Row([], [], [], []), 0
        for index in forest.path(leaf):
            node = forest.nodes[index]
            advantage, weight = by_node.get(index, (0.0, 0.0))
            row.token_ids += node.token_ids
            row.old_logprob += [x if a else 0.0 for x, a in zip(node.logprobs, node.is_action, strict=True)]
            row.advantage += [advantage if a else 0.0 for a in node.is_action]
            row.weight += [weight if a else 0.0 for a in node.is_action]
            end = len(row.token_ids) if weight else end
        rows.append(Row(row.token_ids[:end], row.old_logprob[:end], row.advantage[:end], row.weight[:end]))
    return rows


def _minibatches(forest: Forest, terms: Credit, parts: int, rng: np.random.Generator) -> list[Credit]:
    """Splits the terms by whole trees into at most `parts` parts, each with weights that sum to 1."""
    tree_K = forest.tree_N[terms.leaf_K]
    trees = rng.permutation(np.unique(tree_K))
    chosen = [np.isin(tree_K, part) for part in np.array_split(trees, min(parts, max(1, len(trees)))) if len(part)]
    return [_restrict(forest, terms, rows) for rows in chosen]


def _micro_batches(rows: list[Row], tokens: int) -> list[list[Row]]:
    """Rows of similar length together, each batch within `tokens` padded tokens (a longer row stands alone)."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: len(r.token_ids)):
        if batches and (len(batches[-1]) + 1) * len(row.token_ids) <= tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _restrict(forest: Forest, terms: Credit, rows_K: np.ndarray) -> Credit:
    """Some of the terms, with weights that sum to 1 over their tokens again."""
    node_K, weight_K = terms.node_K[rows_K], terms.weight_K[rows_K]
    weight_K = weight_K / (weight_K @ forest.action_tokens_N[node_K])
    return replace(
        terms, leaf_K=terms.leaf_K[rows_K], node_K=node_K, advantage_K=terms.advantage_K[rows_K], weight_K=weight_K
    )


def _save_optimizer(optimizer: torch.optim.Optimizer, model: Any, folder: Path) -> None:
    tensors = {
        f"{name}/{key}": value.clone()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    save_file(tensors, folder / "optimizer.safetensors")


def _load_optimizer(optimizer: torch.optim.Optimizer, model: Any, folder: Path) -> None:
    """Restores Adam's moments; a checkpoint without any (a pretrained or warmed-up one) starts fresh."""
    path = folder / "optimizer.safetensors"
    if not path.exists():
        return
    try:
        tensors = load_file(path)
    except Exception as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]})") from error
    for name, parameter in model.named_parameters():
        state = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        if state:
            optimizer.state[parameter] = state
