"""docs/parameters.md and the comments of params.yaml say what the sections say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from components.params.root import CHOSEN, compose
from components.tree.advantages import ADVANTAGES
from flows.parameters import meaning, page

ROOT = Path(__file__).parents[2]


def described(section: BaseModel) -> dict[str, list[str | None]]:
    """What the sections say of each key and, as they or their bases do, of themselves, by dotted name."""
    found: dict[str, list[str | None]] = {}
    for key, field in type(section).model_fields.items():
        inner = getattr(section, key)
        if isinstance(inner, BaseModel):
            found[key] = [kind.__doc__ for kind in type(inner).__mro__]
            found |= {f"{key}.{name}": texts for name, texts in described(inner).items()}
        else:
            found[key] = [field.description]
    return found


def test_page_is_what_the_sections_say():
    committed = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert committed == page(), "write it again: python -m flows.parameters > docs/parameters.md"


def test_comments_of_the_embedded_default_are_the_descriptions():
    """Keys that are off, and so left out of the file, need no comment."""
    said, path = described(compose({})), []
    for indent, key, comment in re.findall(r"^( *)(\w+):.*?  # (.*)$", (ROOT / "params.yaml").read_text(), re.M):
        path = [*path[: len(indent) // 2], key]
        assert comment in said[".".join(path)], ".".join(path)
    assert path  # there were comments


@pytest.mark.parametrize(
    "registry", [*(registry for registry, _, _ in CHOSEN.values()), ADVANTAGES], ids=lambda r: r.key
)
def test_every_choice_says_what_it_is(registry):
    assert [name for name, entry in registry.items() if not meaning(entry)] == []
