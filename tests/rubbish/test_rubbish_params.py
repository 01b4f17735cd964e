"""Parameters that mean nothing are one line that names the file and the key; what is accepted is whole."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.errors import UserError
from components.params.load import load_params, parse_assignment
from components.params.root import compose
from tasks.run import open_run
from tests.rubbish.kinds import UNICODE, any_text, any_value, complaint, few

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
    "two units for a group of eight": ("allocation: {root_units: 2, continuations: 0}", "does not pay"),
    "hops that sum to infinity": ("environment: {hops: {1: 1e308, 2: 1.7e308}}", "hops.* expected a positive share"),
    "no hops": ("environment: {hops: {}}", "hops.* expected a positive share"),
    "NUL in a file of a list": ('environment: {name: math, files: {train: ["a\\0"]}}', r"files.*control characters"),
    "impossible time zone": ("run: {seed: 2001-12-14t21:59:43.10-99:00}", "not valid YAML"),
    "set for a section": ("run: !!set {a}", "run="),
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
VALUES = [  # a key, what stands for its value, and what the message says after the key
    ("run.iterations", "9" * 40, "=9"), ("run.seed", "0x" + "f" * 20_000, r"=\(a number of thousands"),
    ("run.seed", "null", "=None"), ("run.seed", "2020-01-01", "=datetime"), ("run.runs_dir", "!!binary aGk=", "=b'hi'"),
    ("run.runs_dir", "''", "=''"), ("run.runs_dir", '"a\\0b"', "=.* control characters"),
    ("run.runs_dir", '"\\ud800"', "="), ("policy.path", '"a\\nb"', "=.* control characters"),
    ("tracking.experiment", '"a\\e[31m"', "=.* control"), ("tracking.mlflow", "'yes'", "='yes'"),
    ("engine.max_tokens", "1000000000000", "=1000000000000"), ("engine.max_turn_tokens", "1000000000000", "=10000"),
    ("engine.batch_size", "99999999999999", "="), ("engine.shards", "99999999999999", "="),
    ("engine.cache_gb", ".inf", "="), ("engine.temperature", "-1", "="), ("allocation.root_units", "99999999999", "="),
    ("allocation.root_units", "0", "=0"), ("allocation.pool", "0", "=0"), ("allocation.continuations", "-1", "=-1"),
    ("allocation.group_size", "1", "=1"), ("allocation.max_per_prompt", "1", "=1"), ("allocation.arm", "7", "=7"),
    ("environment.train_prompts", "0", "=0"), ("environment.hops", "{2: -1}", ""), ("environment.hops", "[1, 2]", ""),
    ("environment.hops", "{2: .nan}", ""), ("environment.hops", "{two: 1}", r"\.two"),
    ("policy.warmup.hops", "{1000000: 1}", r"\.1000000"), ("policy.layers", "1000000", "=1000000"),
    ("policy.hidden", "800000000", "=800000000"), ("predictor.hidden", "10000000000", "="),
    ("predictor.members", "10000000000", "="), ("update.learning_rate", ".inf", "=inf"),
    ("update.learning_rate", "nan", "="), ("update.learning_rate", "1e999", "="), ("update.clip_low", "1.5", r"=1\.5"),
]  # fmt: skip


def value_file(key: str, value: str) -> str:
    """A file that sets one key."""
    *sections, last = key.split(".")
    return "".join(f"{section}: {{" for section in sections) + f"{last}: {value}" + "}" * len(sections)


VALUE_FILES = {
    f"{key}: {value[:20]}": (value_file(key, value), re.escape(key) + said) for key, value, said in VALUES
} | {"integer of 5,000 digits": (value_file("run.seed", "9" * 5000), "not valid YAML")}


@pytest.mark.parametrize("kind", FILES | VALUE_FILES)
def test_bad_file_is_one_line(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    content, message = (FILES | VALUE_FILES)[kind]
    path = tmp_path / "params.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as error:
        load_params(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 3000
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]


KEYS = [f"{section}.{key}" for section, values in compose({}).model_dump().items() for key in values or ()]


def parameters_or_one_line(path: Path, overrides: dict) -> None:
    message = complaint(lambda: load_params(path, overrides))
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
    assert (complaint(lambda: parse_assignment(text)) or "--set").startswith("--set")


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
    assert f"{latest} is not a link" in caplog.text
    assert latest.is_dir() if kind == "folder" else latest.read_text() == "mine"
