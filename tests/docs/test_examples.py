"""The examples of the pages run as printed, and print what the page says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import NamedTuple

import pytest
from components.datasets.sources import SOURCES

from components.allocation.arms import ARMS
from components.environments import ENVIRONMENTS
from components.environments.verify import VERIFIERS
from components.policy.engines import ENGINES
from components.predictor.models import PREDICTORS
from components.tree.advantages import ADVANTAGES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tasks.md", "extend.md")
REGISTRIES = (ARMS, SOURCES, ENVIRONMENTS, ENGINES, PREDICTORS, ADVANTAGES, VERIFIERS)


class Example(NamedTuple):
    """A file of a page, and what it prints; None for a file that others import."""

    name: str
    text: str
    output: str | None


def examples(page: str) -> list[Example]:
    """The page's blocks of Python, each with the block of text that follows it before the next."""
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.S | re.M)
    found: list[Example] = []
    for kind, text in blocks:
        if kind == "python":
            found.append(Example(text.partition("\n")[0].removeprefix("# file: "), text, None))
        else:
            assert found[-1].output is None, f"{page}: two outputs of {found[-1].name}"
            found[-1] = found[-1]._replace(output=text)
    return found


RUN = [(page, example.name) for page in PAGES for example in examples(page) if example.output is not None]


def test_pages_have_the_examples_that_they_should():
    assert [name for _, name in RUN] == ["ask.py", "prove.py", "triples.py", "centred.py", "by_turn.py", "uniform.py"]
    assert all(name.endswith(".py") for page in PAGES for name, _, _ in examples(page))


@pytest.fixture
def _forgotten():
    """What an example registers is gone after it."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        for name in registry.keys() - entries.keys():
            del registry[name]


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(("page", "name"), RUN)
def test_example_prints_what_the_page_says(page, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for example in examples(page):  # as a reader would save them
        Path(example.name).write_text(example.text, encoding="utf-8")
    runpy.run_path(name)
    assert capsys.readouterr().out == next(e.output for e in examples(page) if e.name == name)
