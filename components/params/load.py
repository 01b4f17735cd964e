"""A parameters file: read, laid over the file that it extends, changed by overrides, and composed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from components.errors import UserError
from components.params.plain_yaml import read_yaml
from components.params.root import CHOSEN, Params, compose
from components.registry import load_plugins

Tree = dict[str, Any]


def load_params(path: Path, overrides: dict[str, Any] | None = None) -> Params:
    """Reads and validates a parameters file.

    Where a file or an override chooses another environment, engine, arm, predictor or trainer than the file below it,
    keys of that file which the chosen one does not have are left out.

    Args:
        path: YAML file; keys that it leaves out take their defaults, or the values of the file that its key `extends`
            names, relative to its own folder.
        overrides: Dotted keys to values, e.g. ``{"allocation.root_units": 256}``.

    Raises:
        UserError: if the file is missing or malformed, or a key or value is not acceptable.
    """
    layers = _read(path)
    changes: Tree = {}
    for dotted, value in (overrides or {}).items():
        _set(changes, dotted, value)
    try:
        return compose(merge([*layers, changes]))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def merge(layers: list[Tree]) -> Tree:
    """The layers, each laid over those before it."""
    load_plugins(name for layer in layers for name in layer.get("plugins") or [] if isinstance(name, str))
    result: Tree = {}
    for layer in layers:
        for section, (registry, key, default) in CHOSEN.items():
            mine, below = layer.get(section), result.get(section)
            if not (isinstance(mine, dict) and isinstance(below, dict) and isinstance(mine.get(key), str)):
                continue
            if mine[key] != below.get(key, default) and mine[key] in registry:
                known = registry[mine[key]].Params.model_fields
                result[section] = {name: value for name, value in below.items() if name in known}
        result = _lay_over(result, layer)
    return result


def _lay_over(base: Tree, changes: Tree) -> Tree:
    """`base` with the single values of `changes`; a table whose keys are data (hops, files) is one value."""
    inner = {
        key: _lay_over(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key not in ("hops", "files")
        else value
        for key, value in changes.items()
    }
    return base | inner


def _read(path: Path, above: tuple[Path, ...] = ()) -> list[Tree]:
    """The file's sections, after those of the files that it extends."""
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
        marked = isinstance(error, yaml.MarkedYAMLError)
        where = f", line {error.problem_mark.line + 1}" if marked and error.problem_mark else ""  # type: ignore[union-attr]
        what = error.problem if marked else error  # type: ignore[union-attr]
        raise UserError(f"{path}{where}: not valid YAML: {' '.join(str(what).split())}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected sections with keys, found {type(tree).__name__}")
    if (base := tree.pop("extends", None)) is None:
        return [tree]
    if not isinstance(base, str):
        raise UserError(f"{path}: extends={base!r}: expected the path of a parameters file")
    known = (*above, path.resolve())
    if (other := path.parent / base).resolve() in known:
        raise UserError(f"{path}: extends={base!r} leads back to itself")
    return [*_read(other, known), tree]


def parse_assignment(text: str) -> tuple[str, Any]:
    """Splits ``section.key=value``; the value is read as YAML.

    Raises:
        UserError: if the text has another form.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")) or ("." not in key and key != "plugins"):
        raise UserError(f"--set {text}: expected section.key=value, e.g. --set allocation.root_units=256")
    try:
        return key, read_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"--set {text[:200]}: '{value[:200]}' is not a valid YAML value") from None


def _set(tree: Tree, dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    node = tree
    for section in sections:
        node = node.setdefault(section, {})
        if not isinstance(node, dict):
            raise UserError(f"{dotted}: {section} is not a section")
    node[key] = value
