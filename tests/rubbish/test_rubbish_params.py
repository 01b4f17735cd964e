"""Parameters that mean nothing are one line that names the file and the key; what is accepted is whole."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.errors import UserError
from components.params.load import load_params, parse_assignment
from components.params.root import Params
from tasks.run import open_run
from tests.rubbish.kinds import SURROGATES, UNICODE, any_text, any_value, few, told

ROOT = Path(__file__).parents[2]
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
FILES = {
    "nested beyond depth": ("run: " + "[" * 5000, "not valid YAML"),
    "nested and closed": ("run: " + "[" * 1000 + "]" * 1000, "not valid YAML"),
    "nested mappings": ("run: " + "{a: " * 1000 + "1" + "}" * 1000, "not valid YAML"),
    "section twice": ("run: {seed: 1}\nrun: {seed: 2}", "line 2: .*'run' stands twice"),
    "key twice": ("run:\n  seed: 1\n  seed: 2", "line 3: .*'seed' stands twice"),
    "key twice in flow style": ("run: {seed: 1, seed: 1}", "'seed' stands twice"),
    "number twice": ("environment: {hops: {2: 0.5, 2: 0.5}}", "'2' stands twice"),
    "call of a function": ("run: !!python/object/apply:os.system ['touch pwned']", "could not determine"),
    "name of a function": ("run: !!python/name:os.system", "could not determine"),
    "new object": ("run: !!python/object/new:os.system ['true']", "could not determine"),
    "module": ("run: !!python/module:os", "could not determine"),
    "own tag": ("run: !include /etc/passwd", "could not determine"),
    "bomb of anchors": (BOMB, "no such key"),
    "bomb as a section": (BOMB.replace("j:", "run:"), "no such key"),
    "anchor to itself": ("run: &a [*a]", r"run=\[\["),
    "section that holds itself": ("run: &a {seed: *a}", "run.seed"),
    "alias of nothing": ("run: *none", "undefined alias"),
    "merge of a list": ("run: {<<: [1, 2]}", "not valid YAML"),
    "integer of 5,000 digits": ("run: {seed: " + "9" * 5000 + "}", "not valid YAML"),
    "hexadecimal of 20,000 digits": ("run: {seed: 0x" + "f" * 20_000 + "}", r"run\.seed=\(a number of thousands"),
    "iterations of 40 digits": ("run: {iterations: " + "9" * 40 + "}", r"run\.iterations=9"),
    "tokens without end": ("engine: {max_tokens: 1000000000000}", r"engine\.max_tokens=1000000000000"),
    "turn without end": ("engine: {max_turn_tokens: 1000000000000}", r"engine\.max_turn_tokens=1000000000000"),
    "batch without end": ("engine: {batch_size: 99999999999999}", r"engine\.batch_size"),
    "shards without end": ("engine: {shards: 99999999999999}", r"engine\.shards"),
    "cache of infinity": ("engine: {cache_gb: .inf}", r"engine\.cache_gb"),
    "temperature of minus one": ("engine: {temperature: -1}", r"engine\.temperature"),
    "units without end": ("allocation: {root_units: 99999999999999}", r"allocation\.root_units"),
    "no units": ("allocation: {root_units: 0}", r"allocation\.root_units=0"),
    "one unit": ("allocation: {root_units: 1}", r"allocation\.root_units=1"),
    "two units for a group of eight": ("allocation: {root_units: 2, continuations: 0}", "does not pay"),
    "no candidates": ("allocation: {pool: 0}", r"allocation\.pool=0"),
    "no prompts": ("environment: {train_prompts: 0}", r"environment\.train_prompts=0"),
    "negative continuations": ("allocation: {continuations: -1}", r"allocation\.continuations=-1"),
    "group of one": ("allocation: {group_size: 1}", r"allocation\.group_size=1"),
    "cap of one": ("allocation: {max_per_prompt: 1}", r"allocation\.max_per_prompt=1"),
    "hops that sum to infinity": ("environment: {hops: {1: 1e308, 2: 1.7e308}}", "hops must give"),
    "hops of minus one": ("environment: {hops: {2: -1}}", r"environment\.hops"),
    "hops of NaN": ("environment: {hops: {2: .nan}}", r"environment\.hops"),
    "hops without end": ("policy: {warmup: {hops: {1000000: 1}}}", r"policy\.warmup\.hops\.1000000"),
    "hops of a word": ("environment: {hops: {two: 1}}", r"environment\.hops\.two"),
    "no hops": ("environment: {hops: {}}", "hops must give"),
    "hops as a list": ("environment: {hops: [1, 2]}", r"environment\.hops"),
    "layers without end": ("policy: {layers: 1000000}", r"policy\.layers=1000000"),
    "width without end": ("policy: {hidden: 800000000}", r"policy\.hidden=800000000"),
    "head without end": ("predictor: {hidden: 10000000000}", r"predictor\.hidden"),
    "ensemble without end": ("predictor: {members: 10000000000}", r"predictor\.members"),
    "learning rate of infinity": ("update: {learning_rate: .inf}", r"update\.learning_rate=inf"),
    "learning rate of NaN as text": ("update: {learning_rate: nan}", r"update\.learning_rate"),
    "learning rate beyond floats": ("update: {learning_rate: 1e999}", r"update\.learning_rate"),
    "clip above one": ("update: {clip_low: 1.5}", r"update\.clip_low=1\.5"),
    "NUL in a path": ('run: {runs_dir: "a\\0b"}', r"run\.runs_dir=.* control characters"),
    "line end in a path": ('policy: {path: "a\\nb"}', r"policy\.path=.* control characters"),
    "NUL in a file of a list": ('environment: {files: {train: ["a\\0"]}}', r"environment\.files.*control characters"),
    "escape sequence in a name": ('tracking: {experiment: "a\\e[31m"}', r"tracking\.experiment=.* control"),
    "half a surrogate pair": ('run: {runs_dir: "\\ud800"}', r"run\.runs_dir="),
    "empty path": ("run: {runs_dir: ''}", r"run\.runs_dir=''"),
    "date for a seed": ("run: {seed: 2020-01-01}", r"run\.seed=datetime"),
    "impossible time zone": ("run: {seed: 2001-12-14t21:59:43.10-99:00}", "not valid YAML"),
    "bytes for a path": ("run: {runs_dir: !!binary aGk=}", r"run\.runs_dir=b'hi'"),
    "set for a section": ("run: !!set {a}", "run="),
    "text for a switch": ("tracking: {mlflow: 'yes'}", r"tracking\.mlflow='yes'"),
    "number for a name": ("allocation: {arm: 7}", r"allocation\.arm=7"),
    "null for a number": ("run: {seed: null}", r"run\.seed=None"),
    "null for a section": ("run: null", "run=None"),
    "null for a key": ("null: 3", "None"),
    "number for a key": ("1: {}", "1"),
    "list for a key": ("? [1]\n: 2", "unhashable"),
    "two documents": ("run: {}\n---\nrun: {}", "line 2: not valid YAML"),
    "a number": ("0", "expected sections with keys, found int"),
    "false": ("false", "expected sections with keys, found bool"),
    "a word": ("hello", "expected sections with keys, found str"),
    "tabs": ("run:\n\tseed: 1", "not valid YAML"),
    "unclosed quote": ("run: {name: 'a}", "not valid YAML"),
    "latin 1": ("run: {seed: 1} # é".encode("latin-1"), "not valid YAML"),
    "utf-16": ("run: {seed: 1}".encode("utf-16"), "not valid YAML"),
    "zip": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "not valid YAML"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix", "not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_bad_file_is_one_line(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    content, message = FILES[kind]
    path = tmp_path / "params.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as error:
        load_params(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 3000
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]


KEYS = [f"{section}.{key}" for section, values in Params().model_dump().items() for key in values]


def parameters_or_one_line(path: Path, overrides: dict) -> None:
    message = told(lambda: load_params(path, overrides))
    if message is not None:
        assert str(path) in message or any(key in message for key in overrides)
        assert len(message) < 3000


@few(60)
@given(st.sampled_from(KEYS), any_value)
def test_any_value_of_any_key_is_accepted_or_one_line(key, value):
    parameters_or_one_line(ROOT / "params.yaml", {key: value})


@few(20)
@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(KEYS), any_value, max_size=3))
def test_any_overrides_are_accepted_or_one_line(overrides):
    parameters_or_one_line(ROOT / "params.yaml", overrides)


@few(30)
@given(content=st.binary(max_size=60) | any_text.map(lambda text: ("run: " + text).encode("utf-8", "replace")))
def test_any_file_is_accepted_or_one_line(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    parameters_or_one_line(path, {})


@few(20)
@given(any_text.map(lambda text: f"run.seed={text}") | any_text)
def test_any_assignment_is_split_or_one_line(text):
    assert (told(lambda: parse_assignment(text)) or "--set").startswith("--set")


BAD_IDS = [
    "", ".", "..", "../r", "a/b", "/r", "a\\b", "-r", ".hidden", "latest", "a b", "a\n", "r\x00", "x" * 101, "~",
    "$HOME", "C:r", "a*", "%2e%2e", "\ud800", *UNICODE.values(),
]  # fmt: skip


@pytest.mark.parametrize("run_id", BAD_IDS, ids=range(len(BAD_IDS)))
def test_run_id_that_is_no_plain_name_makes_nothing(params, tmp_path, run_id):
    runs = tmp_path / "runs"
    settings = params.model_copy(update={"run": params.run.model_copy(update={"runs_dir": str(runs)})})
    with pytest.raises(UserError, match=r"--run-id .* use up to 100 letters"):
        open_run(settings, run_id)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_latest_that_no_run_has_made_is_left_as_it_is(params, tmp_path, kind, caplog):
    latest = tmp_path / "latest"
    latest.mkdir() if kind == "folder" else latest.write_text("mine")
    settings = params.model_copy(update={"run": params.run.model_copy(update={"runs_dir": str(tmp_path)})})
    with caplog.at_level(logging.WARNING):
        assert (open_run(settings, "r").path / "manifest.json").exists()
    assert f"{latest} is no link" in caplog.text
    assert latest.is_dir() if kind == "folder" else latest.read_text() == "mine"


def test_surrogates_in_overrides_name_the_key():
    for text in SURROGATES.values():
        with pytest.raises(UserError, match=r"policy\.path"):
            load_params(ROOT / "params.yaml", {"policy.path": text})
