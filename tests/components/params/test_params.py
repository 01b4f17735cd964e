"""Bad parameters are one clear line that names file, key and value, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from components.errors import UserError
from components.params.load import load_params, parse_assignment
from components.params.root import Params, compose, flatten

ROOT = Path(__file__).parents[3]


def load(tmp_path: Path, text: str, **overrides) -> Params:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    return load_params(path, overrides)


def test_embedded_default_holds_the_defaults_and_all_keys_that_are_on():
    assert load_params(ROOT / "params.yaml") == compose({})
    tree, defaults = (
        flatten(x) for x in (yaml.safe_load((ROOT / "params.yaml").read_text()), compose({}).model_dump())
    )
    assert tree.keys() <= defaults.keys()
    assert {key for key in defaults if key not in tree and defaults[key] not in (None, False, 1, [], "fp32")} == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allocation: {root_unit: 3}", r"allocation\.root_unit=3: no such key"),
        ("alocation: {}", r"alocation: no such key"),
        ("allocation: {root_units: many}", r"allocation\.root_units='many': .*integer"),
        ("allocation: {root_units: 1}", r"allocation\.root_units=1: .*greater than or equal to 2"),
        ("allocation: {root_units: 1.5}", r"allocation\.root_units=1\.5"),
        ("allocation: {root_units: true}", r"allocation\.root_units=True"),
        ("allocation: {arm: best}", r"arm='best' is not known; choose one of .*trace"),
        ("allocation: {root_units: 2, continuations: 0}", r"budget of 2 units .*group_size=8"),
        ("allocation: {pool: 9999}", r"allocation\.pool=9999 is larger than environment\.train_prompts=4096"),
        ("engine: {top_p: 0.9}", r"engine\.top_p=0\.9: no such key .*log-probabilities.* need 1"),
        ("engine: {top_k: 20}", r"engine\.top_k=20: no such key .*need 0"),
        ("engine: {repetition_penalty: 1.1}", r"engine\.repetition_penalty=1\.1: no such key"),
        ("engine: {servers: 2}", r"engine\.servers=2: no such key with engine\.name=transformers"),
        ("update: {trainer: deepspeed}", r"update\.trainer='deepspeed': no such key .*update\.name"),
        ("engine: {temperature: 0}", r"engine\.temperature=0"),
        ("engine: {temperature: .nan}", r"engine\.temperature=nan"),
        ("engine: {name: tgi}", r"engine\.name='tgi'"),
        ("environment: {max_turns: 4}", r"max_turns=4 leaves no turn for the answer after 4 hops"),
        ("allocation: {arm: treepo, rounds: 2}", r"allocation\.rounds=2: no such key with allocation\.arm=treepo"),
        ("allocation: {rounds: 3}", r"rounds=3 is more than continuations=2"),
        (
            "environment: {name: maths}",
            r"environment\.name='maths' is not known; did you mean math\? choose one of calculator",
        ),
        ("environment: {hops: {2: 0}}", r"hops: expected a positive share"),
        ("environment: {hops: {0: 1}}", r"environment\.hops"),
        ("update: {advantage: ppo}", r"advantage='ppo' is not known; choose one of grpo"),
        ("update: {packing: dense}", r"update\.packing='dense'"),
        ("update: {max_path_tokens: 64}", r"max_path_tokens=64 is less than .*engine\.max_tokens=128"),
        ("update: {importance_cap: 0.5}", r"update\.importance_cap=0\.5"),
        ("update: {learning_rate: fast}", r"update\.learning_rate='fast'"),
        ("update: {learning_rate: -1.0}", r"update\.learning_rate=-1\.0"),
        ("update: {processes: 2}", r"update\.processes=2: no such key with update\.name=torch"),
        ("update: {name: deepspeed, zero_stag: 3}", r"update\.zero_stag=3: no such key with update\.name=deepspeed"),
        ("update: {name: deepspeed, zero_stage: 4}", r"update\.zero_stage=4"),
        ("update: {name: deepspeed, offload: true}", r"offload=True .* needs zero_stage 1, 2 or 3"),
        ("update: {lora: {rank: -1}}", r"update\.lora\.rank=-1"),
        ("update: {lora: {rank: 4, targets: [all-linear, q_proj]}}", r"all-linear stands alone"),
        ("update: {dtype: fp16}", r"update\.dtype='fp16'"),
        ("policy: {hidden: 6}", r"policy\.hidden=6"),
        ("policy: {warmup: {steps: 0}}", r"policy\.warmup\.steps=0"),
        ("policy: {warmup: {hops: {2: 0}}}", r"hops: expected a positive share"),
        ("run: {threads: 100000}", r"run\.threads=100000"),
        ("run: {seed: 2020-13-45}", r"not valid YAML"),
        ("run: {seed: -1}", r"run\.seed=-1"),
        ("run: {iterations: 0}", r"run\.iterations=0"),
        ("run: 3", r"run=3"),
        ("- a\n- b", r"expected sections with keys, found list"),
        ("run: {iterations: [", r"params\.yaml, line 1: not valid YAML"),
        ("run: \x00", r"not valid YAML"),
    ],
)
def test_bad_value_is_one_line_with_key_and_value(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path, text)
    assert str(tmp_path / "params.yaml") in str(error.value)
    assert "\n" not in str(error.value)


def test_several_faults_are_told_at_once(tmp_path):
    with pytest.raises(UserError, match=r"run\.seed=-1.*update\.epochs=0"):
        load(tmp_path, "run: {seed: -1}\nupdate: {epochs: 0}")


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_no_file_is_said_so(tmp_path, kind):
    path = tmp_path if kind == "folder" else tmp_path / "none.yaml"
    with pytest.raises(UserError, match=r"no such parameters file|is a folder"):
        load_params(path)


def test_left_out_keys_take_their_defaults_and_overrides_win(tmp_path):
    params = load(tmp_path, "run: {seed: 3}", **{"run.seed": 4, "allocation.root_units": 256})
    assert (params.run.seed, params.allocation.root_units, params.allocation.pool) == (4, 256, 128)
    assert load(tmp_path, "") == compose({})


def test_numbers_as_people_write_them(tmp_path):
    """YAML 1.1 reads 3e-4 as text."""
    assert load(tmp_path, "update: {learning_rate: 3e-4}").update.learning_rate == 3e-4
    assert load(tmp_path, "update: {learning_rate: 1}").update.learning_rate == 1.0


def test_keys_of_json_are_text(tmp_path):
    """`prefect deployment run -p overrides=...` brings JSON."""
    assert load(tmp_path, "", **{"environment.hops": {"2": 1.0}}).environment.hops == {2: 1.0}


def test_assignments():
    assert parse_assignment("allocation.root_units=256") == ("allocation.root_units", 256)
    assert parse_assignment("policy.path=null") == ("policy.path", None)
    for text in ("root_units=256", "allocation.root_units", "=3", "a..b=1", "a.b=["):
        with pytest.raises(UserError, match="--set"):
            parse_assignment(text)
    with pytest.raises(UserError, match=r"allocation\.pool: .*valid integer"):
        load_params(ROOT / "params.yaml", {"allocation.pool.size": 3})


def test_overlay_extends_another_file_value_by_value(tmp_path):
    (tmp_path / "base.yaml").write_text("run: {iterations: 3, seed: 5}\nenvironment: {hops: {2: 1.0}}\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "more.yaml").write_text(
        "extends: ../base.yaml\nrun: {seed: 6}\nenvironment: {hops: {3: 1.0}}\n"
    )
    settings = load_params(tmp_path / "deep" / "more.yaml", {"run.threads": 2})
    assert (settings.run.iterations, settings.run.seed, settings.run.threads) == (3, 6, 2)
    assert settings.environment.hops == {3: 1.0}  # a table whose keys are data is one value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: none.yaml", r"none\.yaml: no such parameters file"),
        ("extends: a.yaml", r"a\.yaml: extends='a\.yaml' leads back to itself"),
        ("extends: [b.yaml]", r"a\.yaml: extends=\['b\.yaml'\]: expected the path of a parameters file"),
        ("extends: b.yaml", r"b\.yaml: extends='a\.yaml' leads back to itself"),
    ],
)
def test_what_cannot_be_extended_is_told(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    with pytest.raises(UserError, match=message):
        load_params(tmp_path / "a.yaml")
