"""Small forests, models and policies that the tests of the trainers and of packing share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from components.policy.checkpoint import load_model
from components.policy.packing.batches import Proximal, micro_batches
from components.policy.packing.rows import Row
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.loss import batch_loss, term_logprobs
from components.tree.advantages import terms_of
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason

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
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, initializer_range=0.3, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def node(
    tree: int, row: int, parent: int, turn: int, acted: list[int], seen: list[int], logprob: float, **more
) -> Node:
    """A node whose sampled tokens all have one log-probability; a root where `parent` is -1."""
    return Node(
        tree, f"p{tree}", row, parent, turn, Origin.ROOT if parent < 0 else Origin.FACTUAL, token_ids=acted + seen,
        is_action=[True] * len(acted) + [False] * len(seen),
        logprobs=[logprob] * len(acted) + [np.nan] * len(seen), **more,
    )  # fmt: skip


def grow(trees: list[list[int]], seed: int = 0, vocabulary: int = VOCABULARY, longest: int = 6) -> Forest:
    """Trees given by each node's parent among its own (-1: the prompt); turns of sampled and observed tokens."""
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    for tree, parents in enumerate(trees):
        root = len(nodes)
        for index, parent in enumerate([None, *parents]):
            leaf = parent is not None and index - 1 not in parents
            acted = 0 if parent is None else int(rng.integers(1, longest + 1))
            seen = 4 if parent is None else 0 if leaf else int(rng.integers(0, 4))
            ids = rng.integers(0, vocabulary, acted + seen).tolist()
            above = -1 if parent is None else root + 1 + parent
            turn = 0 if parent is None else nodes[above].turn + 1
            end = {"stop_reason": StopReason.ANSWERED, "reward": float(rng.integers(0, 2))} if leaf else {}
            more = {"anchor_id": root, "sibling": index, **end}
            nodes.append(node(tree, len(nodes), above, turn, ids[:acted], ids[acted:], -3.0, **more))
        leaves = [n for n in nodes[root:] if n.is_terminal]
        if len(leaves) > 1:  # every tree with two leaves has contrast
            leaves[0].reward, leaves[-1].reward = 1.0, 0.0
    return Forest(nodes)


def tree(rewards: list[float | None], number: int = 0, first: int = 0, turns: int = 2) -> list[Node]:
    """A prompt with one chain of `turns` turns (5 sampled tokens, 3 observed ones) per reward; None: not scored."""
    rng = np.random.default_rng(number)

    def tokens(count: int) -> list[int]:
        return rng.integers(6, 90, count).tolist()

    nodes = [node(number, first, -1, 0, [], tokens(4), -1.0)]
    for sibling, reward in enumerate(rewards):
        parent = first
        for turn in range(1, turns + 1):
            end = {"stop_reason": StopReason.ANSWERED, "reward": reward} if turn == turns else {}
            end |= {"status": Status.ERROR} if turn == turns and reward is None else {}
            ids, row = tokens(5 if turn == turns else 8), first + len(nodes)
            more = {"anchor_id": first, "sibling": sibling, **end}
            nodes.append(node(number, row, parent, turn, ids[:5], ids[5:], -1.0, **more))
            parent = row
    return nodes


def forest(*rewards: list[float | None], turns: int = 2) -> Forest:
    """A tree for each list of rewards."""
    nodes: list[Node] = []
    for index, group in enumerate(rewards):
        nodes += tree(group, index, len(nodes), turns)
    return Forest(nodes)


def with_policy_logprobs(trees: Forest, policy: Path) -> Forest:
    """The same forest with the log-probabilities that `policy` really gives its sampled tokens."""
    model, nodes = load_model(policy).eval(), []
    for given in trees.nodes:
        history = trees.prefix_ids(given.parent_id) if given.parent_id >= 0 else [0]
        exact = plain_logprobs(model, history, given.token_ids)
        kept = [x if acted else np.nan for x, acted in zip(exact.tolist(), given.is_action, strict=True)]
        nodes.append(replace(given, logprobs=kept))
    return Forest(nodes)


def plain_logprobs(model, history: list[int], ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of `ids` after `history`, by one plain forward pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([history + ids])).logits[0, len(history) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids, dtype=torch.long)[:, None])[:, 0]


def near(model, trees: Forest, kind: str, seed: int = 0) -> Proximal:
    """Old log-probabilities around the model's own: ratios from 0.6 to 1.6, weights from 0.5 to 2."""
    rng, terms = np.random.default_rng(seed), terms_of(trees, kind)
    logprob_T = trees.logprob_T.copy()
    with torch.no_grad():
        for batch in micro_batches(trees, terms, FLAT):
            logprob_T[batch.token_K] = term_logprobs(model, batch, 0.8).numpy()
    return Proximal(logprob_T + rng.uniform(-0.47, 0.47, len(logprob_T)), rng.uniform(0.5, 2, len(logprob_T)))


def gradient(model, trees: Forest, update: UpdateParams, proximal: Proximal | None = None, temperature: float = 0.8):
    model.zero_grad(set_to_none=True)
    for batch in micro_batches(trees, terms_of(trees, update.advantage), update, proximal):
        batch_loss(model, batch, update, temperature)[0].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def row_of(ids: list[int], trained: int = 1) -> Row:
    """A path whose last tokens are trained."""
    weight = np.array([0.0] * (len(ids) - trained) + [1.0] * trained)
    return Row(np.array(ids), np.zeros(len(ids)), np.ones(len(ids)), weight, np.arange(len(ids)), 0)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert theirs.abs().max() > 0
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
