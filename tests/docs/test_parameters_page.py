"""docs/parameters.md and the comments of params.yaml say what the models say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from components.allocation.arms.trace_unified import TraceUnified
from components.params.root import Params
from flows.parameters import REGISTRIES, meaning, page

ROOT = Path(__file__).parents[2]


def comments(model: type[BaseModel]) -> list[tuple[str, str | None]]:
    """Each key in the order of the file, and what the model says of it."""
    found: list[tuple[str, str | None]] = []
    for key, field in model.model_fields.items():
        inner = type(field.default) if isinstance(field.default, BaseModel) else None
        found.append((key, field.description if inner is None else inner.__doc__))
        found += comments(inner) if inner else []
    return found


def test_page_is_what_the_models_say():
    committed = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert committed == page(), "make it anew: python -m flows.parameters > docs/parameters.md"


def test_comments_of_the_embedded_default_are_the_descriptions():
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^ *(\w+):.*?  # (.*)$", text, re.MULTILINE) == comments(Params)


@pytest.mark.parametrize("registry", REGISTRIES)
def test_every_choice_says_what_it_is(registry):
    assert [name for name, entry in REGISTRIES[registry].items() if not meaning(entry)] == []


def test_an_entry_says_how_it_differs_from_its_kind():
    assert meaning(TraceUnified()) == "Roots by Eq. 13 with a part of the budget, the rest by one queue."
    assert meaning(TraceUnified(per="units")).endswith("one queue. Here per is `units`.")
