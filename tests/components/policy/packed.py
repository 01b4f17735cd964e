"""Small forests and models on which packed trees are compared with flat rows."""

from __future__ import annotations

import numpy as np
import torch
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
)

from components.policy.packing.batches import Proximal, micro_batches
from components.policy.packing.rows import Row
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import batch_loss, score
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason

VOCABULARY = 40
TREE = UpdateParams(advantage="grpo", packing="tree")
FLAT = TREE.model_copy(update={"packing": "flat"})
SHAPES = {
    "star": [[-1, -1, -1, -1]],
    "chains": [[-1, 0, 1, -1, 3, 4]],
    "late branches": [[-1, 0, 1, 2, 0, 1, 2, 2]],
    "bushy": [[-1, 0, 0, 0, -1, 4, 4, 5, 5]],
    "several": [[-1, -1], [-1, 0, 0], [-1, -1, 0, 0, 1]],
}


def qwen(tied: bool = False, layers: int = 2) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()


def grow(trees: list[list[int]], seed: int = 0, vocabulary: int = VOCABULARY, longest: int = 6) -> Forest:
    """Trees given by each node's parent among its own (-1: the prompt); turns of sampled and observed tokens."""
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    for tree_id, parents in enumerate(trees):
        root = len(nodes)
        for index, parent in enumerate([None, *parents]):
            leaf = parent is not None and index - 1 not in parents
            acted = 0 if parent is None else int(rng.integers(1, longest + 1))
            seen = 4 if parent is None else 0 if leaf else int(rng.integers(0, 4))
            nodes.append(
                Node(
                    tree_id,
                    f"p{tree_id}",
                    len(nodes),
                    -1 if parent is None else root + 1 + parent,
                    0 if parent is None else nodes[root + 1 + parent].turn + 1,
                    Origin.ROOT if parent is None else Origin.FACTUAL,
                    anchor_id=root,
                    sibling=index,
                    token_ids=rng.integers(0, vocabulary, acted + seen).tolist(),
                    is_action=[True] * acted + [False] * seen,
                    logprobs=[-3.0] * acted + [np.nan] * seen,
                    stop_reason=StopReason.ANSWERED if leaf else None,
                    reward=float(rng.integers(0, 2)) if leaf else None,
                )
            )
        leaves = [n for n in nodes[root:] if n.is_terminal]
        if len(leaves) > 1:  # every tree with two leaves has contrast
            leaves[0].reward, leaves[-1].reward = 1.0, 0.0
    return Forest(nodes)


def near(model, trees: Forest, kind: str, seed: int = 0) -> Proximal:
    """Old log-probabilities around the model's own: ratios from 0.6 to 1.6, weights from 0.5 to 2."""
    rng, terms = np.random.default_rng(seed), terms_of(trees, kind)
    logprob_T = trees.logprob_T.copy()
    with torch.no_grad():
        for batch in micro_batches(trees, terms, FLAT):
            logprob_T[batch.token_K] = score(model, batch, 0.8).numpy()
    return Proximal(logprob_T + rng.uniform(-0.47, 0.47, len(logprob_T)), rng.uniform(0.5, 2, len(logprob_T)))


def gradient(model, trees: Forest, update: UpdateParams, proximal: Proximal, temperature: float = 0.8) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    for batch in micro_batches(trees, terms_of(trees, update.advantage), update, proximal):
        batch_loss(model, batch, update, temperature)[0].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def row_of(ids: list[int], trained: int = 1) -> Row:
    weight = np.array([0.0] * (len(ids) - trained) + [1.0] * trained)
    return Row(np.array(ids), np.zeros(len(ids)), np.ones(len(ids)), weight, np.arange(len(ids)), 0)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert theirs.abs().max() > 0
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
