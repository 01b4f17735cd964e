"""Shapes of models against the models themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from components.environments import ENVIRONMENTS
from components.environments.generated import GeneratedEnvironment
from components.errors import UserError
from components.planning.models import PUBLISHED, Model, model_of, read_model
from components.policy.base import PolicyParams
from components.policy.engines.transformers.attention import RowCache
from components.policy.engines.transformers.prefix_cache import PrefixCache
from components.policy.tiny import build_model, build_tokenizer

SMOLLM2 = Model(30, 576, 9, 3, 64, 1536, 49152, True)
CLASSES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def real(kind: str, shape: Model, device: str = "meta"):
    config, model = CLASSES[kind]
    sizes = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "intermediate_size": shape.intermediate, "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied, "head_dim": shape.head_dim,
    }  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        return model(config(**sizes)).eval()


@pytest.mark.parametrize(("name", "parameters"), [("Qwen3-8B", 8190735360), ("Qwen3-14B", 14768307200)])
def test_published_shapes_have_the_parameters_of_their_checkpoints(name, parameters):
    """The totals that the checkpoints' index files give."""
    assert PUBLISHED[name].parameters == parameters


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *(("qwen3", shape) for shape in PUBLISHED.values()),
        ("llama", SMOLLM2),
        ("llama", Model(2, 64, 4, 2, 16, 96, 100, False)),
        ("qwen2", Model(2, 64, 4, 2, 16, 96, 100, True, qkv_bias=True)),
    ],
)
def test_parameters_are_counted_exactly(kind, shape, tmp_path):
    model = real(kind, shape)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    model.config.save_pretrained(tmp_path)
    assert read_model(tmp_path / "config.json") == shape


def test_tiny_policies_are_counted_within_a_tenth():
    """Their vocabulary depends on the task."""
    for task in [kind() for kind in ENVIRONMENTS.values() if issubclass(kind, GeneratedEnvironment)]:
        counted = sum(p.numel() for p in build_model(PolicyParams(), build_tokenizer(task.vocabulary())).parameters())
        assert model_of(None, PolicyParams()).parameters == pytest.approx(counted, rel=0.1)


def test_cache_holds_what_the_engine_allocates():
    shape = Model(3, 64, 4, 2, 16, 96, 100, True)
    pool = PrefixCache(shape.layers, shape.kv_heads, shape.head_dim, 100, torch.float32)
    rows = RowCache(pool, [np.zeros(0, dtype=np.int64)] * 5, 7)
    assert rows.kv.nbytes == 5 * 7 * shape.cache_bytes(4)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_forward_operations_are_those_that_are_counted(kind):
    shape = Model(2, 64, 4, 2, 16, 96, 100, False, qk_norm=kind == "qwen3")
    tokens = torch.zeros(1, 256, dtype=torch.long)
    model = real(kind, shape, "cpu")
    model.set_attn_implementation("eager")  # two products of matrices, over the whole square and not half of it
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=tokens, use_cache=False)
    counted = counter.get_total_flops()
    attention = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "bmm" in str(op))
    assert attention == 2 * 2 * 2 * shape.query * 256**2
    assert 256 * shape.forward_flops(256) == pytest.approx(counted - attention / 2, rel=0.01)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("mixed", [False, True])
def test_activations_are_those_that_layers_keep(kind, mixed):
    """From one number of layers to another, so that what is kept outside of them does not count."""

    def kept(layers: int) -> int:
        shape = Model(layers, 96, 6, 2, 16, 192, 50, False, qk_norm=kind == "qwen3")
        model = real(kind, shape, "cpu")
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        seen: dict[int, torch.UntypedStorage] = {}  # the storages are held, so that no address comes twice

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if (storage := tensor.untyped_storage()).data_ptr() not in weights:
                seen[storage.data_ptr()] = storage
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=mixed),
        ):
            model.get_decoder()(input_ids=torch.zeros(1, 512, dtype=torch.long), use_cache=False)
        return sum(storage.nbytes() for storage in seen.values())

    shape = Model(1, 96, 6, 2, 16, 192, 50, False, qk_norm=kind == "qwen3")
    assert 512 * shape.activation_bytes(mixed, False) == pytest.approx(kept(2) - kept(1), rel=0.1 if mixed else 0.03)


def test_checkpointing_keeps_each_layer_s_input_and_one_layer():
    shape = PUBLISHED["Qwen3-8B"]
    whole = shape.activation_bytes(True, False)
    assert shape.activation_bytes(True, True) == pytest.approx(36 * 4 * 4096 + whole / 36)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' cannot be planned"),
        ({"hidden_size": None}, "is no model's configuration"),
        ({"num_hidden_layers": "many"}, "is no model's configuration"),
    ],
)
def test_unknown_or_damaged_configuration_is_an_error(tmp_path, change, message):
    real("llama", Model(2, 64, 4, 2, 16, 96, 100, True)).config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=message):
        read_model(file)


def test_model_that_is_not_there_is_an_error_with_its_key():
    assert model_of("models/Qwen3-8B", PolicyParams()) == PUBLISHED["Qwen3-8B"]
    with pytest.raises(UserError, match=r"predictor\.path='models/Other'.* known only of Qwen3-0\.6B, Qwen3-8B"):
        model_of("models/Other", PolicyParams(), "predictor.path")
