"""Names in a parameters file, and the classes that they stand for.

What has a name is a class that owns everything about itself: its parameters (`Params`), what it needs installed, what
it can do, and how it is made. A registry finds the built-in ones by their place, one module each, and imports a module
when its name is asked for. Others come from a plug-in: a module named in `plugins`, or an entry point of a package.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from components.errors import MissingExtraError, UserError
from components.params.base import Section

_REGISTRIES: list[Registry[Any]] = []
_PLUGINS: dict[str, ModuleType] = {}


class Plugin:
    """The base of what a registry holds.

    Attributes:
        name: What parameters files call it.
        Params: Its section of the parameters, or the keys that it adds to one.
        needs: Modules that must be importable, each with the extra of pyproject.toml that brings it.
    """

    name: ClassVar[str] = ""
    Params: ClassVar[type[Section]] = Section
    needs: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def check(cls, params: Any) -> None:
        """Says now, not in the middle of a run, what this machine lacks; `params` are those of the whole run.

        Raises:
            UserError: if something is missing; the message says how to get it.
        """
        for module, extra in cls.needs.items():
            if not can_import(module):
                raise MissingExtraError(cls.name, extra)


T = TypeVar("T", bound=Plugin)


class Registry(Mapping[str, type[T]]):
    """The implementations of one idea, by name.

    Args:
        key: The key of the parameters that holds the name, e.g. ``allocation.arm``.
        base: What all are derived from.
        package: Where the built-in ones lie: its sub-packages, or its modules where it has none.
        group: Entry points of other packages that bring more.
        separator: What stands in names for the underscores of modules.
    """

    def __init__(self, key: str, base: type[T], package: str, group: str, separator: str = "-") -> None:
        self.key, self.base, self.package, self.group = key, base, package, group
        self.separator = separator
        self._found: dict[str, type[T]] = {}
        self._modules: dict[str, str] | None = None
        _REGISTRIES.append(self)
        for module in _PLUGINS.values():  # loaded before this registry was imported
            self.take(module)

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._found:
            self._found[name] = self._import(name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._built_in(), **self._found, **self._installed()})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._found or name in self._built_in() or name in self._installed()

    def choose(self, name: Any) -> type[T]:
        """The class of a name that a user wrote.

        Raises:
            UserError: if there is none; the message names those that there are.
        """
        if isinstance(name, str) and name in self:
            return self[name]
        near = get_close_matches(str(name), list(self), 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{self.key}={name!r:.200} is not known; {meant}choose one of {', '.join(self)}")

    def take(self, module: ModuleType) -> None:
        """Adds the classes of a plug-in that belong here.

        Raises:
            UserError: if one has the name of another.
        """
        for kind in _defined_in(module, self.base):
            known = self.get(kind.name)
            if known is not None and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
                raise UserError(
                    f"{self.key}: {kind.__module__} and {known.__module__} both have the name {kind.name!r}"
                )
            self._found[kind.name] = kind

    def _built_in(self) -> dict[str, str]:
        """Names of the modules of the package; none is imported."""
        if self._modules is None:
            package = importlib.import_module(self.package)
            found = list(pkgutil.iter_modules(package.__path__))
            inner = [module.name for module in found if module.ispkg] or [module.name for module in found]
            self._modules = {
                module.replace("_", self.separator): f"{self.package}.{module}" for module in sorted(inner)
            }
        return self._modules

    def _installed(self) -> dict[str, Any]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _import(self, name: str) -> type[T]:
        if name in self._built_in():
            return next(iter(_defined_in(importlib.import_module(self._built_in()[name]), self.base)))
        if name in self._installed():
            point = self._installed()[name]
            try:
                kind: type[T] = point.load()
            except Exception as error:  # whatever the package raises
                raise UserError(f"{self.key}={name}: {point.value} cannot be loaded: {_reason(error)}") from error
            if not (inspect.isclass(kind) and issubclass(kind, self.base)):
                raise UserError(f"{self.key}={name}: {point.value} is no {self.base.__name__}")
            return kind
        raise KeyError(name)


def load_plugins(names: Iterable[str]) -> None:
    """Imports plug-in modules, from the current folder or installed, and adds what they define to the registries.

    Raises:
        UserError: if a module is missing or fails, or brings nothing.
    """
    for name in names:
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        try:
            module = importlib.import_module(name)
        except Exception as error:  # whatever the user's module raises
            where = "" if can_import(name) else f": no such module in {here}, nor installed"
            raise UserError(f"plugins: {name} cannot be imported ({_reason(error)}){where}") from error
        if not _defined_in(module, Plugin):
            raise UserError(f"plugins: {name} defines no class with a `name` (an Environment, an Arm, a Predictor ...)")
        for registry in _REGISTRIES:
            registry.take(module)
        _PLUGINS[name] = module


def loaded_plugins() -> list[str]:
    """The plug-ins of this process, for processes that it starts."""
    return list(_PLUGINS)


def _defined_in(module: ModuleType, base: type[T]) -> list[type[T]]:
    """The classes with a name that a module defines."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__ and value.name
    ]


def can_import(name: str) -> bool:
    """Whether a module can be found."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
