"""A parameters file: read, laid over the file that it extends, changed by overrides, and validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from components.config import Params
from components.errors import UserError
from components.plain_yaml import read_yaml, short


def load_params(path: Path, overrides: dict[str, Any] | None = None) -> Params:
    """Reads and validates a parameters file.

    Args:
        path: YAML file; keys that it leaves out take their defaults, or the values of the file that its key `extends`
            names, relative to its own folder.
        overrides: Dotted keys to values, e.g. ``{"allocation.root_units": 256}``.

    Raises:
        UserError: if the file is missing or malformed, or a key or value is not acceptable.
    """
    tree = _read(path)
    for dotted, value in (overrides or {}).items():
        _set(tree, dotted, value)
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{path}: {_one_line(error)}") from None


def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The sections of a parameters file, laid over those of the file that it extends."""
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
        tree = {} if tree is None else tree
    except FileNotFoundError:
        raise UserError(f"{path}: no such parameters file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a parameters file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = (
            f", line {error.problem_mark.line + 1}"
            if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark
            else ""
        )
        what = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise UserError(f"{path}{where}: not valid YAML: {' '.join(str(what).split())}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected sections with keys, found {type(tree).__name__}")
    if (base := tree.pop("extends", None)) is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: extends={base!r}: expected the path of a parameters file")
    known = (*above, path.resolve())
    if (other := path.parent / base).resolve() in known:
        raise UserError(f"{path}: extends={base!r} leads back to itself")
    return _merge(_read(other, known), tree)


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the single values of `changes`; tables whose keys are data (hops, files) are values."""
    inner = {
        key: _merge(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key not in ("hops", "files")
        else value
        for key, value in changes.items()
    }
    return base | inner


def parse_assignment(text: str) -> tuple[str, Any]:
    """Splits ``section.key=value``; the value is read as YAML.

    Raises:
        UserError: if the text has another form.
    """
    key, equals, value = text.partition("=")
    if not equals or "." not in key or not all(key.split(".")):
        raise UserError(f"--set {text}: expected section.key=value, e.g. --set allocation.root_units=256")
    try:
        return key, read_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"--set {text[:200]}: '{value[:200]}' is not a valid YAML value") from None


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    node = tree
    for section in sections:
        node = node.setdefault(section, {})
        if not isinstance(node, dict):
            raise UserError(f"{dotted}: {section} is not a section")
    node[key] = value


def _one_line(error: ValidationError) -> str:
    """All faults of a validation, each as ``key=value: reason``."""
    parts = []
    for fault in error.errors()[:20]:
        key = ".".join(str(part)[:80] for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = "no such key"
        shown = fault["input"]
        where = "" if not key else f"{key}: " if isinstance(shown, dict | BaseModel) else f"{key}={short(shown)}: "
        parts.append(where + message)
    return "; ".join(parts)
