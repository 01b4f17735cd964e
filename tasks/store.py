"""A run in an object store: any machine can continue it, whatever became of the machine that began it.

The run's folder stays local. After each stage a thread uploads the stage's outputs and then the iteration's manifest,
so what the store's manifests name was there before them. Opening a run brings the manifests; an output is fetched when
a stage asks for it, and taken only if its content hash is the one that the manifest names. Neither direction moves what
is there already with that hash. Whoever opens the run holds its lease.

A store that is away or slow delays the uploads, not the run: what is missing follows later, at the latest when the run
is opened again on the same machine. Opening a run needs the store, for another machine may have gone further.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from components.errors import MissingExtraError, UserError
from components.storage import atomic_path, content_hash, read_json
from tasks.lease import Lease

T = TypeVar("T")
logger = logging.getLogger("trace")

BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0)
AGAIN_SECONDS = 30.0  # between attempts while the store is away
RUN_FILES = ("params.yaml", "manifest.json", "metrics.jsonl", "summary.json")
SMALL = re.compile(r"iterations/.+/(manifest|metrics)\.json|" + "|".join(re.escape(name) for name in RUN_FILES))

_open: dict[Path, Store] = {}


def store_of(path: Path) -> Store | None:
    """The store of the run in this folder, while it is held."""
    return _open.get(path)


def is_whole(path: Path, expected: str) -> bool:
    """Whether a file or folder of a run has this content hash: here or, brought from there now, in the run's store."""
    if path.exists() and content_hash(path) == expected:
        return True
    store = next((store for parent in path.parents if (store := store_of(parent))), None)
    return store is not None and store.fetch(path, expected)


def is_there(path: Path) -> bool:
    """Whether a path exists: here or, brought from there now, in the run's store as its iteration's manifest says."""
    if path.exists():
        return True
    manifest = path.with_name("manifest.json")
    expected = _outputs(_stages(manifest.read_bytes())).get(path.name) if manifest.exists() else None
    return expected is not None and is_whole(path, expected)


@contextmanager
def hold(path: Path, url: str | None) -> Iterator[None]:
    """Holds a run's copy in the store, brings this machine's up to date first, and the store's at the end.

    Args:
        path: The run's folder.
        url: The store, a folder for all runs; None: no store.

    Raises:
        UserError: if another machine holds the run, or the store cannot be reached.
    """
    if url is None:
        yield
        return
    store = _open[path] = Store(f"{url.rstrip('/')}/{path.name}", path)
    try:
        store.start()
        yield
    finally:
        del _open[path]
        store.close()


def bring(url: str, folder: Path) -> Path:
    """Brings a run that lies in a store to read it; `url` ends in its id. Returns its folder, below `folder`.

    Where this machine's copy is not newer, it is brought up to date. Outputs follow when they are read.

    Raises:
        UserError: if there is no such run.
    """
    path = (folder / url.rstrip("/").rpartition("/")[2]).absolute()
    store = Store(url, path)
    if not store.pull():
        raise UserError(f"no run in {url}")
    _open[path] = store
    return path


class Store:
    """The copy of one run in a store. Methods raise a UserError where the store cannot be reached."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url.rstrip("/"), path
        self.fs, self.root = file_system(self.url)
        self.lease = Lease(self.fs, f"{self.root}/.lease", f"run {path.name} in {url.rpartition('/')[0]}")
        self._names: set[str] = set()  # what lies there
        self._hashes: dict[str, str] = {}  # content hashes of the outputs and files there
        self._stages: dict[str, Any] = {}  # manifests there, by name
        self._settled: set[str] = set()  # iterations that change no more
        self._drops: set[str] = set()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._failure: str | None = None
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self) -> None:
        """Takes the lease, brings the manifests, and starts uploading what the store lacks."""
        self._reach(self.lease.acquire)
        try:
            self.pull()
            self._reach(lambda: self._write(".writer", self.lease.token.encode()))
        except BaseException:
            self.lease.release()
            raise
        self._own.write_text(self.lease.token)
        self._thread.start()
        self.notify()

    def close(self) -> None:
        """Waits for the last uploads; where the store is away, says what is missing there."""
        if self._thread.is_alive():
            self._closing.set()
            self.notify()
            self._thread.join()
        self.lease.release()
        if self._failure is not None:
            logger.warning(
                "%s does not have all of the run (%s); %s has: to push it, continue the run here",
                self.url, self._failure, self.path,
            )  # fmt: skip

    def notify(self) -> None:
        """Says that the run's files have changed."""
        self._wake.set()
        if self._lost is not None and not self._closing.is_set():
            raise UserError(self._lost)

    def pull(self) -> bool:
        """Brings the manifests; returns whether there is a run.

        The store's win where the last to write there was another folder than this one; what this one had not uploaded
        by then is made anew.
        """
        self._names = {name[len(self.root) + 1 :] for name in self._reach(lambda: self._find(self.root))}
        if "manifest.json" not in self._names:
            return False
        writer = self._reach(lambda: self.fs.cat_file(self._at(".writer"))).decode() if self._has(".writer") else ""
        newer = not (self._own.is_file() and self._own.read_text() == writer)
        names = [name for name in self._names if SMALL.fullmatch(name)]
        contents = self._reach(lambda: self.fs.cat([self._at(name) for name in names]))
        for name in names:
            content, mine = contents[self._at(name)], self.path / name
            if not mine.exists() or (newer and mine.read_bytes() != content):
                with atomic_path(mine) as temporary:
                    temporary.write_bytes(content)
            self._hashes[name] = sha256(content).hexdigest()
            if name == "manifest.json":
                self._hashes |= json.loads(content).get("outputs", {})
            elif name.endswith("/manifest.json"):
                self._stages[name] = _stages(content)
                folder = name.rpartition("/")[0]
                self._hashes |= {f"{folder}/{relative}": h for relative, h in _outputs(self._stages[name]).items()}
        if newer:
            for manifest in list(self.path.glob("iterations/**/manifest.json")):
                if manifest.relative_to(self.path).as_posix() not in self._names:
                    manifest.unlink()
        return True

    def fetch(self, path: Path, expected: str) -> bool:
        """Brings a file or folder of the run; returns whether the store has it with the expected content hash."""
        name = path.relative_to(self.path).as_posix()
        below = [one for one in list(self._names) if one == name or one.startswith(f"{name}/")]
        if not below:
            return False
        try:
            with atomic_path(path) as temporary:
                local = [temporary / one[len(name) + 1 :] if one != name else temporary for one in below]
                for file in local:
                    file.parent.mkdir(parents=True, exist_ok=True)
                self._reach(lambda: self.fs.get([self._at(one) for one in below], [str(file) for file in local]))
                if content_hash(temporary) != expected:
                    raise _DamagedError
        except _DamagedError:
            logger.warning("%s/%s is damaged", self.url, name)
            self._hashes.pop(name, None)
            return False
        return True

    def drop(self, path: Path) -> None:
        """Removes a file or folder in the store, once all that is new is safe there."""
        self._drops.add(path.relative_to(self.path).as_posix())

    def _work(self) -> None:
        while True:
            self._wake.wait(AGAIN_SECONDS if self._failure else None)
            self._wake.clear()
            closing = self._closing.is_set()
            try:
                self._sync()
                self._failure = None
            except UserError as error:  # the lease is lost
                self._lost = self._failure = str(error)
                return
            except Exception as error:  # whatever a store raises: the run goes on
                if self._failure is None:
                    logger.warning("%s is away (%s); the run goes on, uploads follow", self.url, _line(error))
                self._failure = _line(error)
            if closing:
                return

    def _sync(self) -> None:
        """Uploads what the store lacks: outputs before the manifests that name them, then deletes."""
        _patiently(self.lease.check)
        if (self.path / "manifest.json").exists():
            self._put(self.path, read_json(self.path / "manifest.json").get("outputs", {}))
        folders = sorted((self.path / "iterations").glob("[0-9]*"))
        for folder in folders:
            if folder.name in self._settled:
                continue
            recorded = False
            for manifest in sorted(folder.rglob("manifest.json"), reverse=True):  # an iteration's own after its parts'
                with suppress(FileNotFoundError):  # a part dropped meanwhile
                    recorded = "record" in self._sync_stages(manifest)
            if recorded and folder != folders[-1]:
                self._settled.add(folder.name)
        for name in RUN_FILES:
            if (self.path / name).exists():
                content = (self.path / name).read_bytes()
                if self._hashes.get(name) != sha256(content).hexdigest():
                    self._write(name, content)
                    self._hashes[name] = sha256(content).hexdigest()
        for name in list(self._drops):
            self._remove(name)
            self._drops.discard(name)

    def _sync_stages(self, manifest: Path) -> dict[str, Any]:
        """Uploads what a manifest names, and it; returns what the store then has of it."""
        name, content = manifest.relative_to(self.path).as_posix(), manifest.read_bytes()
        stages = _stages(content)
        # Where a stage is making an output anew, its end tells again.
        if stages != self._stages.get(name, {}) and self._put(manifest.parent, _outputs(stages)):
            self._write(name, content)
            self._stages[name] = stages
        return dict(self._stages.get(name, {}))

    def _put(self, folder: Path, outputs: dict[str, str]) -> bool:
        """Uploads outputs that are not there with the same hash; returns whether all stayed as they were meanwhile."""
        for relative, expected in outputs.items():
            path, name = folder / relative, (folder / relative).relative_to(self.path).as_posix()
            if (self._has(name) and self._hashes.get(name) == expected) or not path.exists():
                continue  # or dropped here: what came after it is there, or on its way
            files = [f for f in path.rglob("*") if f.is_file() and f.name[0] != "."] if path.is_dir() else [path]
            try:
                if content_hash(path) != expected:
                    return False
                if self._has(name):
                    self._remove(name)
                targets = [file.relative_to(self.path).as_posix() for file in files]
                _patiently(partial(self.fs.put, [str(file) for file in files], [self._at(one) for one in targets]))
                if content_hash(path) != expected:
                    return False
            except FileNotFoundError:  # dropped meanwhile
                if path.exists():
                    raise
                self._drops.add(name)
                continue
            self._names.update(targets)
            self._hashes[name] = expected
        return True

    def _write(self, name: str, content: bytes) -> None:
        def write() -> None:
            if "file" in self.fs.protocol:  # objects appear whole, files need help
                with atomic_path(Path(self._at(name))) as temporary:
                    temporary.write_bytes(content)
            else:
                self.fs.pipe_file(self._at(name), content)

        _patiently(write)
        self._names.add(name)

    def _remove(self, name: str) -> None:
        def remove() -> None:
            if found := self._find(self._at(name)):
                self.fs.rm(found)

        _patiently(remove)
        self._names = {one for one in list(self._names) if one != name and not one.startswith(f"{name}/")}

    def _find(self, path: str) -> list[str]:
        self.fs.invalidate_cache()
        return list(self.fs.find(path))

    def _has(self, name: str) -> bool:
        return name in self._names or any(one.startswith(f"{name}/") for one in list(self._names))

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def _own(self) -> Path:
        """Holds the token under which this folder last wrote to the store."""
        return self.path / ".writer"

    def _reach(self, work: Callable[[], T]) -> T:
        try:
            return _patiently(work)
        except UserError:
            raise
        except Exception as error:  # every store has kinds of its own
            advice = "mend it, or go on with what is on this machine: --set run.store=null"
            raise UserError(f"run.store: cannot reach {self.url} ({_line(error)}); {advice}") from error


class _DamagedError(Exception):
    pass


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        UserError: if there is no such kind of store, or its package is not installed.
    """
    import fsspec

    local = {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}
    try:
        fs, root = fsspec.url_to_fs(url, **local)
    except ImportError as error:
        if url.startswith(("s3:", "s3a:")):
            raise MissingExtraError(f"run.store: {url}", "s3") from error
        raise UserError(f"run.store={url!r}: {_line(error)}") from error
    except ValueError as error:
        raise UserError(f"run.store={url!r}: {_line(error)}") from error
    return fs, root.rstrip("/")


def _patiently(work: Callable[[], T]) -> T:
    for seconds in BACK_OFF_SECONDS:
        try:
            return work()
        except (UserError, FileNotFoundError, PermissionError):
            raise
        except Exception:  # every store has kinds of its own
            time.sleep(seconds)
    return work()


def _stages(content: bytes) -> dict[str, Any]:
    """A manifest's stages; none where it is damaged."""
    try:
        stages = json.loads(content)
        _outputs(stages)
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return dict(stages)


def _outputs(stages: dict[str, Any]) -> dict[str, str]:
    return {relative: value for entry in stages.values() for relative, value in entry["outputs"].items()}


def _line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
