"""Self-contained pages: data, style and script in one file, nothing loaded from elsewhere, all text escaped."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

TEMPLATES = Environment(loader=PackageLoader(__package__, "pages"), autoescape=True, trim_blocks=True)


def page(template: str, title: str, data: dict[str, Any], **values: Any) -> str:
    """A page of `pages/` as HTML.

    Args:
        template: Its file.
        title: Its heading.
        data: What its script draws: under `trees`, trees as `components.tracking.viewer.trees` gives them.
        values: What else the template names.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Inside a script element only these end or open markup; as escapes of JSON they are the same text.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return TEMPLATES.get_template(template).render(title=title, data=Markup(text), **values)
