"""Checkpoints that are damaged, foreign or hostile: one line that names the folder; no code in them runs."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from components.allocation.anchors import Belief
from components.build import make_predictor
from components.environments.multihop import make_prompt
from components.errors import UserError
from components.params.root import compose
from components.policy.checkpoint import load_model, save_model
from components.policy.renderer import Renderer
from components.policy.tiny import build_model
from components.policy.trainers.base import UpdateParams
from components.policy.trainers.torch.trainer import TorchTrainer
from components.predictor.base import Prefix, believe
from components.predictor.heads import mixture_belief
from components.predictor.models import PREDICTORS
from components.predictor.models.beta import BetaParams, BetaPosterior
from components.predictor.models.policy_features import PolicyFeaturesParams
from components.predictor.policy_features import PolicyFeatures
from tests.components.policy.forests import forest

PROMPT = make_prompt(7, ["mother", "boss"], "ann")


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.fixture
def policy(random_policy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(random_policy, tmp_path / "policy"))


def weights(change):
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return damage


def config(name: str = "config.json", **changes):
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def write(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def index(content: str):
    """An index in the place of the weights, which lie outside of the folder."""

    def damage(folder: Path) -> None:
        shutil.move(folder / "model.safetensors", folder.parent / "away.safetensors")
        (folder / "model.safetensors.index.json").write_text(content)

    return damage


def first(tensors):
    return tensors["model.layers.0.self_attn.q_proj.weight"]


MODELS = {
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "no configuration": lambda f: (f / "config.json").unlink(),
    "empty weights": write("model.safetensors", b""),
    "random weights": write("model.safetensors", bytes(range(256)) * 20),
    "header without end": write("model.safetensors", b"\xff" * 8 + b"{}"),
    "pickle for weights": write("model.safetensors", pickle.dumps({"a": 1})),
    "zip for weights": write("model.safetensors", b"PK\x03\x04" + b"\0" * 100),
    "weights of nothing": weights(lambda t: t.clear()),
    "one weight missing": weights(lambda t: t.pop("model.norm.weight")),
    "a layer missing": weights(lambda t: [t.pop(k) for k in list(t) if ".layers.1." in k]),
    "output layer missing": weights(lambda t: t.pop("lm_head.weight")),
    "wrong shape": weights(lambda t: t.update({"model.norm.weight": torch.ones(7)})),
    "NaN": weights(lambda t: first(t).view(-1)[:1].fill_(torch.nan)),
    "infinity": weights(lambda t: first(t).view(-1)[:1].fill_(torch.inf)),
    "another size": config(hidden_size=32),
    "another depth": config(num_hidden_layers=3),
    "another vocabulary": config(vocab_size=7),
    "configuration of a list": write("config.json", b"[]"),
    "configuration of nothing": write("config.json", b"{}"),
    "configuration with NUL": write("config.json", b"\0"),
    "unknown kind": config(model_type="nothing-known"),
    "kind of images": config(model_type="vit"),
    "negative depth": config(num_hidden_layers=-1),
    "words for numbers": config(hidden_size="many"),
    "index to nowhere": index('{"weight_map": {"lm_head.weight": "none.safetensors"}}'),
    "index out of the folder": index('{"weight_map": {"lm_head.weight": "../away.safetensors"}}'),
    "index of rubbish": index("[1]"),
    "adapter": write("adapter_config.json", b"{}"),
}
TOKENIZERS = {
    "none": lambda f: [p.unlink() for p in f.iterdir() if "token" in p.name or "template" in p.name],
    "no template": lambda f: (f / "chat_template.jinja").unlink(),
    "template that is none": write("chat_template.jinja", b"{% if %}"),
    "template that says nothing": write("chat_template.jinja", b""),
    "template in bytes": write("chat_template.jinja", b"\xff\xfe"),
    "empty": write("tokenizer.json", b""),
    "not JSON": write("tokenizer.json", b"{"),
    "of nothing": write("tokenizer.json", b"{}"),
    "of another, larger model": config(vocab_size=90),
    "of another end": config(eos_token_id=3),
    "without an end": config(eos_token_id=None),
    "configuration of a list": write("tokenizer_config.json", b"[]"),
}


@pytest.mark.parametrize(
    ("read", "damage", "said"),
    [pytest.param(load_model, damage, "", id=f"model: {kind}") for kind, damage in MODELS.items()]
    + [
        pytest.param(Renderer.load, damage, " holds no usable tokenizer", id=f"tokenizer: {kind}")
        for kind, damage in TOKENIZERS.items()
    ],
)
def test_bad_checkpoint_is_one_line(policy, read, damage, said):
    damage(policy)
    with pytest.raises(UserError, match=f"{policy}{said}") as error:
        read(policy)
    assert "\n" not in str(error.value)


def test_tied_checkpoint_lacks_no_weights(params, policy):
    tied = build_model(params.policy, Renderer.load(policy).tokenizer)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    save_model(tied, policy)
    assert "lm_head.weight" not in load_file(policy / "model.safetensors")
    model = load_model(policy)
    assert model.lm_head.weight is model.model.embed_tokens.weight


PICKLE_MAP = json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}})
OWN_CODE = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
HOSTILE = {
    "weights as a pickle beside safetensors": lambda f, bomb: None,
    "weights as a pickle alone": lambda f, bomb: (f / "model.safetensors").unlink(),
    "index that names the pickle": lambda f, bomb: index(PICKLE_MAP)(f),
    "index of pickles": lambda f, bomb: [
        (f / "model.safetensors").unlink(),
        (f / "pytorch_model.bin.index.json").write_text(PICKLE_MAP),
    ],
    "pickle under the name of safetensors": lambda f, bomb: shutil.copy(
        f / "pytorch_model.bin", f / "model.safetensors"
    ),
    "adapter": lambda f, bomb: [
        (f / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(f), "peft_type": "LORA"})),
        shutil.copy(f / "pytorch_model.bin", f / "adapter_model.bin"),
    ],
    "code of its own for a known kind": lambda f, bomb: config(auto_map=OWN_CODE)(f),
    "code of its own for an unknown kind": lambda f, bomb: config(model_type="evil", auto_map=OWN_CODE)(f),
    "code of its own for the tokenizer": lambda f, bomb: config(
        "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    )(f),
    "code in the template": lambda f, bomb: (f / "chat_template.jinja").write_text(
        "{{ ''.__class__.__mro__[1].__subclasses__() }}"
        f"{{{{ cycler.__init__.__globals__.os.system('touch {bomb}') }}}}"
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_code_of_a_checkpoint_runs(policy, tmp_path, kind):
    bomb = tmp_path / "pwned"
    with (policy / "pytorch_model.bin").open("wb") as stream:
        pickle.dump(Bomb(bomb), stream)
    (policy / "evil.py").write_text(f"open({str(bomb)!r}, 'w')")
    HOSTILE[kind](policy, bomb)
    for read in (load_model, Renderer.load):
        try:
            read(policy)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
    assert not bomb.exists()


def test_a_pickle_of_this_kind_would_run(tmp_path):
    """So that the test above can fail."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "pwned")))
    assert (tmp_path / "pwned").exists()


OPTIMIZERS = {
    "empty": b"",
    "pickle": pickle.dumps({}),
    "other shape": {"lm_head.weight/exp_avg": torch.zeros(3), "lm_head.weight/step": torch.tensor(1.0)},
    "NaN": {"lm_head.weight/exp_avg": torch.full((1,), torch.nan)},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bad_optimiser_state_is_one_line_before_any_step(policy, tmp_path, kind):
    file, content = policy / "optimizer.safetensors", OPTIMIZERS[kind]
    file.write_bytes(content) if isinstance(content, bytes) else save_file(content, file)
    with pytest.raises(UserError, match=str(file)):
        TorchTrainer(UpdateParams(advantage="grpo"), 1.0).update(forest([1.0, 0.0]), policy, tmp_path / "next", 0)
    assert not (tmp_path / "next").exists()


STATES = {  # instead of the tensors: nothing, bytes, or what becomes of them
    "missing": None,
    "empty": b"",
    "pickle": pickle.dumps([1]),
    "random": bytes(range(256)),
    "another head": lambda tensors: {"a": torch.ones(2)},
    "other shapes": lambda tensors: {name: weight[:1].clone() for name, weight in tensors.items()},
    "NaN": lambda tensors: tensors | {"outer_bias": torch.full_like(tensors["outer_bias"], torch.nan)},
    "infinity": lambda tensors: tensors | {"outer_bias": torch.full_like(tensors["outer_bias"], torch.inf)},
}


@pytest.mark.parametrize("kind", STATES)
def test_bad_state_of_the_predictor_is_one_line(random_policy, tmp_path, kind):
    predictor = PolicyFeatures(PolicyFeaturesParams(hidden=8), 4, random_policy)
    predictor.save(tmp_path)
    file, content = tmp_path / "head.safetensors", STATES[kind]
    if callable(content):
        save_file(content(load_file(file)), file)
    else:
        file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UserError, match=f"{tmp_path}: the predictor's state is missing or damaged"):
        predictor.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "3", "null", '{"p": 1}', '{"p": [1]}', '{"p": [1, 2, 3]}', '{"p": ["a", 1]}', '{"p": [-1, 2]}',
     '{"p": [NaN, 1]}', '{"p": [Infinity, 1]}', "[" * 20_000],
    ids=range(12),
)  # fmt: skip
def test_bad_counts_of_the_predictor_are_one_line(tmp_path, content):
    (tmp_path / "posterior.json").write_text(content)
    with pytest.raises(UserError, match=str(tmp_path)):
        BetaPosterior(BetaParams(), tmp_path).load(tmp_path)


def test_belief_that_is_no_number_is_ignorance_with_a_warning(caplog):
    mean = torch.tensor([[0.5, torch.nan, 0.25], [0.5, 0.5, 0.25]])
    concentration = torch.tensor([[2.0, 2.0, 4.0], [2.0, 2.0, torch.nan]])
    belief = mixture_belief(mean, concentration)
    np.testing.assert_allclose(belief.mean_A, [0.5, 0.5, 0.5])
    np.testing.assert_allclose(belief.concentration_A, 2.0)
    assert "2 of 3 beliefs of the predictor are no numbers" in caplog.text


class Foreign:
    """A predictor of the user's own, which answers anything."""

    def __init__(self, answer) -> None:
        self.answer = answer

    def predict(self, prefixes):
        return self.answer(len(prefixes)) if callable(self.answer) else self.answer


def belief(mean: float, concentration: float = 2.0):
    return lambda size: Belief(np.full(size, mean), np.full(size, concentration))


@pytest.mark.parametrize(
    "answer",
    [None, 0.5, [0.5], np.full(2, 0.5), belief(np.nan), belief(np.inf), belief(-0.1), belief(1.1), belief(0.5, 0.0),
     belief(0.5, np.nan), belief(0.5, -1.0), lambda size: belief(0.5)(size + 1), lambda size: belief(0.5)(0)],
    ids=range(13),
)  # fmt: skip
def test_foreign_predictor_that_gives_no_belief_is_named(answer):
    prefix = Prefix.root(PROMPT, [1, 2])
    with pytest.raises(UserError, match="the predictor Foreign gives"):
        believe(Foreign(answer), [prefix, prefix])


@pytest.mark.parametrize("name", [name for name in PREDICTORS if name != "oracle"])
def test_state_of_another_predictor_is_refused(random_policy, tmp_path, name):
    (tmp_path / "oracle").touch()
    with pytest.raises(UserError, match=str(tmp_path)):
        make_predictor(compose({"predictor": {"name": name}}), random_policy, tmp_path)
