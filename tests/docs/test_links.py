"""Every relative link of README.md and docs/*.md leads to something, anchors included; code that is named is there."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(page: Path) -> str:
    """The page without its blocks of code, in which nothing is a link or a heading."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@lru_cache
def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?)\s*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        copies = sum(1 for name in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", name))
        found.add(f"{slug}-{copies}" if copies else slug)
    return found


def faults(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for label, target in re.findall(r"\[([^]]*)\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        defined = re.fullmatch(r"`(\w+)`", label) if file.suffix == ".py" else None
        if not file.is_relative_to(ROOT) or not file.exists():
            found.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(file):
            found.append(f"{target}: no such heading; there are {sorted(anchors(file))}")
        elif (
            defined
            and defined[1] != file.stem
            and not re.search(rf"^(def|class) {defined[1]}\b", file.read_text(encoding="utf-8"), re.M)
        ):
            found.append(f"{target} does not define {defined[1]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert faults(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_are_named_exist(page):
    folders = "components|tasks|flows|tests|bench|docs|params"
    named = re.findall(rf"`((?:{folders})/[\w/.-]*\w)(?:::\w+)?`", prose(page))
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


def test_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"^\| \[(\S+)\]", index, re.MULTILINE)) == pages


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](gone.md)", "gone.md: no such file"),
        ("[a](../../secret.md)", "../../secret.md: no such file"),
        ("# Here\n[a](#there)", "#there: no such heading; there are ['here']"),
        ("[`gone`](../flows/train.py)", "../flows/train.py does not define gone"),
    ],
)
def test_link_that_leads_nowhere_is_told(text, fault, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path / "project")
    for path, content in (("docs/page.md", text), ("flows/train.py", "def trace(): ...\n")):
        (file := tmp_path / "project" / path).parent.mkdir(parents=True)
        file.write_text(content, encoding="utf-8")
    assert faults(tmp_path / "project" / "docs" / "page.md") == [fault]
