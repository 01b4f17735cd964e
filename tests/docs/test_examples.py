"""The examples of docs/tasks.md run as printed, and print what the page says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from components.datasets.sources import SOURCES
from components.environments import ENVIRONMENTS
from components.verifiers import VERIFIERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```python\n(# file: (\S+)\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
OUTPUTS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The page's files, as a reader would save them."""
    folder = tmp_path_factory.mktemp("reader")
    for text, name in FILES:
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_every_example_of_the_page_is_a_file_and_every_output_has_one():
    assert [name for _, name in FILES] == [
        "ask.py", "units_tool.py", "units_environment.py", "units_verifier.py", "prove.py",
    ]  # fmt: skip
    assert PAGE.count("```python") == len(FILES)
    assert len(OUTPUTS) == 2


@pytest.mark.parametrize(("name", "expected"), [("ask.py", 0), ("prove.py", 1)])
def test_example_prints_what_the_page_says(folder, name, expected, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for registry in (ENVIRONMENTS, VERIFIERS, SOURCES):  # what the example registers is forgotten after it
        monkeypatch.setitem(registry, "units", None)
    runpy.run_path(name)
    assert capsys.readouterr().out == OUTPUTS[expected]


def test_paths_on_the_page_exist():
    for path in re.findall(r"`((?:components|docs)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
