"""The page docs/parameters.md, from the sections and the docstrings of what is registered.

python -m flows.parameters > docs/parameters.md
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from components.params.root import CHOSEN, Params, compose
from components.tree.advantages import ADVANTAGES

HEAD = """\
# Parameters

All keys of [params.yaml](../params.yaml). This page is made from the sections of what is registered by
`python -m flows.parameters > docs/parameters.md`. A file needs only the keys that differ from the default; its key
`extends` names a file that it is laid over, and `--set section.key=value` changes one. An unknown key, a value out of
bounds, or values that do not go together are told before anything starts.
"""

BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤", "multipleOf": "multiple of"}
BOUNDS |= {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}  # so named where a number may be written as text
LENGTHS = ("minLength", "minItems")


def page() -> str:
    """The text of docs/parameters.md."""
    defaults = compose({})
    parts = [HEAD, _section("", "", Params, [key for key in Params.model_fields if key not in _sections(defaults)])]
    for name, section in _sections(defaults).items():
        if name not in CHOSEN:
            parts.append(_section(name, name, type(section)))
            continue
        registry = CHOSEN[name][0]
        shared = set(registry.base.Params.model_fields)
        parts.append(_section(name, name, registry.base.Params))
        rows = [_row([f"`{entry}`", meaning(registry[entry])]) for entry in registry]
        parts.append("\n" + "\n".join([*_table(f"`{registry.key}`", "meaning"), *rows]) + "\n")
        if name == "update":
            rows = [_row([f"`{entry}`", meaning(ADVANTAGES[entry])]) for entry in ADVANTAGES]
            parts.append("\n" + "\n".join([*_table(f"`{ADVANTAGES.key}`", "meaning"), *rows]) + "\n")
        for entry in registry:
            own = [k for k in registry[entry].Params.model_fields if k not in shared]
            if own:
                parts.append(_section(name, f"{registry.key}: {entry}", registry[entry].Params, own))
    return "".join(parts)


def meaning(entry: type) -> str:
    """What an entry of a registry is: the first paragraph of its docstring."""
    return " ".join((inspect.getdoc(entry) or "").partition("\n\n")[0].split())


def _sections(params: Params) -> dict[str, BaseModel]:
    """The sections by dotted name, those inside of others after them."""
    found: dict[str, BaseModel] = {}
    for name in type(params).model_fields:
        if isinstance(section := getattr(params, name), BaseModel):
            found[name] = section
            for inner in type(section).model_fields:
                if isinstance(below := getattr(section, inner), BaseModel):
                    found[f"{name}.{inner}"] = below
    return found


def _section(name: str, title: str, model: type[BaseModel], keys: Sequence[str] | None = None) -> str:
    """A table of the keys of a section, by default all but those that are sections themselves."""
    schema = model.model_json_schema()
    rows = []
    for key, field in model.model_fields.items():
        if (key in keys) if keys is not None else not isinstance(field.default, BaseModel):
            mine = schema["properties"][key]
            rows.append(
                _row([f"`{key}`", _type(mine), f"`{_yaml(field.default)}`", _allowed(mine), str(field.description)])
            )
    about = [f"{schema['description']}\n"] if title else []
    lines = [f"\n## {title}\n"] * bool(title) + about + _table("key", "type", "default", "allowed", "meaning") + rows
    return ("" if title else "\n") + "\n".join(lines) + "\n"


def _table(*head: str) -> list[str]:
    return [_row(head), _row(["---"] * len(head))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _yaml(value: Any) -> str:
    """A value as params.yaml has it."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("...\n").strip()


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return "section"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}s"
    if schema["type"] == "object":
        return "table"
    return {"number": "float", "null": "`null`"}.get(schema["type"], str(schema["type"]))


def _allowed(schema: dict[str, Any]) -> str:
    """Bounds and choices, those of the values of lists and tables included."""
    parts = [f"`{choice}`" for choice in schema.get("enum", [])]
    parts += [f"{sign} {_number(schema[key])}" for key, sign in BOUNDS.items() if key in schema]
    parts += ["not empty" for key in LENGTHS if key in schema]
    if "propertyNames" in schema:
        parts.append(f"keys {_allowed(schema['propertyNames'])}")
    for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", [])):
        parts += [text] if isinstance(inner, dict) and (text := _allowed(inner)) else []
    return ", ".join(parts)


def _number(value: float) -> str:
    power = int(value).bit_length() - 1
    return f"2^{power}" if value > 2**12 and value == 2**power else f"{value:g}"


if __name__ == "__main__":
    print(page(), end="")
