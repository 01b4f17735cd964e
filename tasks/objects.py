"""The objects below a URL of an fsspec file system; a call that fails is tried again after growing waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from components.errors import MissingExtraError, UserError
from components.storage import atomic_path

T = TypeVar("T")

BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0)


class Objects:
    """Names are relative to the URL. A name stands for an object and for all below it.

    Raises:
        UserError: if there is no such kind of store, or its package is not installed. Methods raise what the store
            raises: each has kinds of its own.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, self.root = file_system(self.url)
        self.names: set[str] = set()  # what lies there, as far as is known

    def look(self) -> None:
        """Looks anew at what lies there."""
        self.names = {path[len(self.root) + 1 :] for path in patiently(lambda: self._find(self.root))}

    def below(self, name: str) -> list[str]:
        return [one for one in list(self.names) if one == name or one.startswith(f"{name}/")]

    def read(self, names: list[str]) -> dict[str, bytes]:
        contents = patiently(lambda: self.fs.cat([self.at(name) for name in names])) if names else {}
        return {name: contents[self.at(name)] for name in names}

    def write(self, name: str, content: bytes) -> None:
        def write() -> None:
            if "file" in self.fs.protocol:  # objects appear whole, files need help
                with atomic_path(Path(self.at(name))) as temporary:
                    temporary.write_bytes(content)
            else:
                self.fs.pipe_file(self.at(name), content)

        patiently(write)
        self.names.add(name)

    def put(self, name: str, path: Path) -> None:
        """Uploads a file, or all in a folder but hidden files."""
        files = [f for f in path.rglob("*") if f.is_file() and f.name[0] != "."] if path.is_dir() else [path]
        names = [f"{name}/{file.relative_to(path).as_posix()}" if file != path else name for file in files]
        patiently(lambda: self.fs.put([str(file) for file in files], [self.at(one) for one in names]))
        self.names.update(names)

    def get(self, name: str, path: Path) -> None:
        """Writes an object to a path, or all below its name to a folder."""
        names = self.below(name)
        files = [path / one[len(name) + 1 :] if one != name else path for one in names]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
        patiently(lambda: self.fs.get([self.at(one) for one in names], [str(file) for file in files]))

    def remove(self, name: str) -> None:
        def remove() -> None:
            if found := self._find(self.at(name)):
                self.fs.rm(found)

        patiently(remove)
        self.names -= set(self.below(name))

    def at(self, name: str) -> str:
        """The file system's path of a name."""
        return f"{self.root}/{name}"

    def _find(self, path: str) -> list[str]:
        self.fs.invalidate_cache()
        return list(self.fs.find(path))


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        UserError: if there is no such kind of store, or its package is not installed.
    """
    import fsspec

    local = {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}
    try:
        fs, root = fsspec.url_to_fs(url, **local)
    except (ImportError, ValueError) as error:
        if isinstance(error, ImportError) and url.startswith(("s3:", "s3a:")):
            raise MissingExtraError(f"run.store: {url}", "s3") from error
        raise UserError(f"run.store={url!r}: {one_line(error)}") from error
    return fs, root.rstrip("/")


def patiently(work: Callable[[], T]) -> T:
    """Tries again where that may help."""
    for seconds in BACK_OFF_SECONDS:
        try:
            return work()
        except (UserError, FileNotFoundError, PermissionError):
            raise
        except Exception:  # every store has kinds of its own
            time.sleep(seconds)
    return work()


def one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
