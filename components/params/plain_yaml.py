"""YAML of plain values, and values shown in short: what users write into parameters files."""

from __future__ import annotations

from reprlib import Repr
from typing import Any

import yaml

_REPR = Repr()  # anchors can make a small file a value without end
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 200, 200


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice: YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r:.80} stands twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: if it is none.
    """
    return yaml.load(text, _Loader)


def short(value: Any) -> str:
    """The value in at most a few hundred characters."""
    try:
        return _REPR.repr(value)
    except ValueError:
        return "(a number of thousands of digits)"
