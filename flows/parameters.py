"""The page docs/parameters.md, from the models of components/config.py and the registries' docstrings.

python -m flows.parameters > docs/parameters.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from components.allocation import ARMS
from components.config import Params
from components.environments import ENVIRONMENTS
from components.policy import ENGINES, TRAINERS
from components.predictor import PREDICTORS
from components.tree.advantages import ADVANTAGES

REGISTRIES: dict[str, dict[str, Any]] = {
    "environment.name": dict(ENVIRONMENTS),
    "engine.name": dict(ENGINES),
    "allocation.arm": dict(ARMS),
    "predictor.name": dict(PREDICTORS),
    "update.trainer": dict(TRAINERS),
    "update.advantage": dict(ADVANTAGES),
}

HEAD = """\
# Parameters

All keys of [params.yaml](../params.yaml). This page is made from the models in `components/config.py` by
`python -m flows.parameters > docs/parameters.md`. A file needs only the keys that differ from the default; its key
`extends` names a file that it is laid over, and `--set section.key=value` changes one. An unknown key, a value out of
bounds, or values that do not go together are told before anything starts.
"""

BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤", "multipleOf": "multiple of"}
BOUNDS |= {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}  # so named where a number may be written as text
LENGTHS = ("minLength", "minItems")


def page() -> str:
    """The text of docs/parameters.md."""
    return HEAD + "".join(_section(name, model) for name, model in _sections("", Params))


def meaning(entry: Any) -> str:
    """What an entry of a registry is: the first paragraph of its docstring, and what it is made with."""
    kind = entry if inspect.isroutine(entry) or inspect.isclass(entry) else type(entry)
    text = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    own = {} if kind is entry else {k: v for k, v in vars(entry).items() if v != vars(kind())[k]}
    return text + "".join(f" Here {key} is `{value}`." for key, value in own.items())


def _sections(name: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """A model's dotted name and the model, then those of the models in it."""
    if name:
        yield name, model
    for key, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _sections(f"{name}.{key}".lstrip("."), type(field.default))


def _section(name: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    rows = []
    for key, field in model.model_fields.items():
        if not isinstance(field.default, BaseModel):
            mine, registered = schema["properties"][key], f"{name}.{key}" in REGISTRIES
            allowed = "listed below" if registered else _allowed(mine)
            rows.append(_row([f"`{key}`", _type(mine), f"`{_yaml(field.default)}`", allowed, str(field.description)]))
    lines = [f"\n## {name}\n", f"{schema['description']}\n", *_table("key", "type", "default", "allowed", "meaning")]
    lines += rows
    for key, registry in REGISTRIES.items():
        if key.rpartition(".")[0] == name:
            lines += ["", *_table(f"`{key}`", "meaning")]
            lines += [_row([f"`{entry}`", meaning(value)]) for entry, value in registry.items()]
    return "\n".join(lines) + "\n"


def _table(*head: str) -> list[str]:
    return [_row(head), _row(["---"] * len(head))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _yaml(value: Any) -> str:
    """A value as params.yaml has it."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("...\n").strip()


def _type(schema: dict[str, Any]) -> str:
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
