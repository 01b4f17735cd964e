"""The examples of the pages run as printed, and print what the page says."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from components import registry

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tasks.md", "extend.md")


class Example(NamedTuple):
    """A file of a page, and what it prints; None for a file that others import."""

    name: str
    text: str
    output: str | None


def examples(page: str) -> list[Example]:
    """The page's blocks of Python that name a file, each with the block of text that follows it before the next."""
    found: list[Example] = []
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.S | re.M):
        if kind == "python" and text.startswith("# file: "):
            found.append(Example(text.partition("\n")[0].removeprefix("# file: "), text, None))
        elif kind == "text":
            assert found[-1].output is None, f"{page}: two outputs of {found[-1].name}"
            found[-1] = found[-1]._replace(output=text)
    return found


RUN = [(page, example.name) for page in PAGES for example in examples(page) if example.output is not None]


@pytest.mark.parametrize("page", PAGES)
def test_page_has_examples_that_run(page):
    assert sum(where == page for where, _ in RUN) >= 2
    assert all(name.endswith(".py") for name, _, _ in examples(page))


@pytest.fixture
def _forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example registers and imports is gone after it."""
    for each in registry._REGISTRIES:
        monkeypatch.setattr(each, "_found", dict(each._found))
    monkeypatch.setattr(registry, "_PLUGINS", dict(registry._PLUGINS))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(("page", "name"), RUN)
def test_example_prints_what_the_page_says(page, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for example in examples(page):  # as a reader would save them
        Path(example.name).write_text(example.text, encoding="utf-8")
    runpy.run_path(name)
    assert capsys.readouterr().out == next(e.output for e in examples(page) if e.name == name)
