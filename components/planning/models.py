"""The shape of a dense decoder, and what follows from it: parameters, key-value cache, activations, operations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from components.errors import UserError
from components.policy.base import PolicyParams

KINDS = ("qwen3", "qwen2", "llama", "mistral")


@dataclass(frozen=True)
class Model:
    """A decoder with grouped-query attention and a gated feed-forward layer.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary: Sizes.
        tied: Whether the output layer is the embedding.
        qk_norm: Whether queries and keys are normalised per head (Qwen3).
        qkv_bias: Whether their projections have biases (Qwen2).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer's matrices."""
        return self.hidden * (2 * self.query + 2 * self.key + 3 * self.intermediate)

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        layer = self.layer_matrices + 2 * self.hidden
        layer += 2 * self.head_dim if self.qk_norm else 0
        layer += self.query + 2 * self.key if self.qkv_bias else 0
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def cache_bytes(self, bytes_per_number: int) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.key * bytes_per_number

    def forward_flops(self, length: float) -> float:
        """Floating-point operations of one token's forward pass in a sequence of `length` tokens.

        Two per weight of every matrix, the output layer included (Kaplan et al. 2020, arXiv 2001.08361, Table 1), and
        those of causal attention, which sees half of the sequence in the mean: 4 · query width · length / 2 a layer.
        """
        matrices = self.layers * self.layer_matrices + self.vocabulary * self.hidden
        return 2.0 * matrices + 2.0 * self.layers * self.query * length

    def activation_bytes(self, mixed: bool, checkpointing: bool) -> float:
        """What the layers keep of one token for the backward pass, the output layer aside.

        The widths that one layer of `transformers` keeps were counted with saved-tensor hooks (docs/plan.md); `mixed`:
        under bfloat16 autocast over fp32 weights. With checkpointing, each layer's input is kept, and one layer whole.
        """
        normed = self.query + self.key if self.qk_norm else 0
        if mixed:
            layer = 27.3 * self.hidden + 4.3 * (self.query + self.key) + 6.1 * normed + 8.4 * self.intermediate
        else:
            layer = 24.0 * self.hidden + 8.0 * (self.query + self.key) + 8.0 * normed + 16.0 * self.intermediate
        return self.layers * 4.0 * self.hidden + layer if checkpointing else self.layers * layer


# config.json of the models at huggingface.co/Qwen; layers, heads and tying also in arXiv 2505.09388, Table 1.
PUBLISHED = {
    "Qwen3-0.6B": Model(28, 1024, 16, 8, 128, 3072, 151936, True, True),
    "Qwen3-8B": Model(36, 4096, 32, 8, 128, 12288, 151936, False, True),
    "Qwen3-14B": Model(40, 5120, 40, 8, 128, 17408, 151936, False, True),
}
TINY_WORDS = 130  # vocabulary of the tiny policies: 120 to 140 words, by task


def model_of(path: str | None, tiny: PolicyParams, key: str = "policy.path") -> Model:
    """Shape of a checkpoint: read from its config.json, or, where it is not on disk, as published under its name.

    Args:
        path: Folder of the checkpoint; None for the tiny policy.
        tiny: Shape of the tiny policy.
        key: Who names the path, for the message.

    Raises:
        UserError: if the model is neither on disk nor in `PUBLISHED`, or is no dense decoder of a known kind.
    """
    if path is None:
        head = tiny.hidden // 4
        return Model(tiny.layers, tiny.hidden, 4, 2, head, 3 * tiny.hidden, TINY_WORDS, False, True)
    file = Path(path) / "config.json"
    if file.is_file():
        return read_model(file)
    if (name := Path(path).name) in PUBLISHED:
        return PUBLISHED[name]
    raise UserError(f"{key}={path!r}: no config.json there, and its shape is known only of {', '.join(PUBLISHED)}")


def read_model(file: Path) -> Model:
    """Shape that a config.json describes.

    Raises:
        UserError: if the file is damaged, a size is missing, or the model is of another kind.
    """
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = config["model_type"]
        if kind not in KINDS:
            raise UserError(f"{file}: model_type={kind!r} cannot be planned; only {', '.join(KINDS)} can")
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return Model(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            qkv_bias=kind == "qwen2",
        )
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file} is no model's configuration: {reason}") from error
