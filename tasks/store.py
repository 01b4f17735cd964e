"""A run in an object store: any machine can continue it, whatever became of the machine that began it.

The run's folder stays local. After each stage a thread uploads the stage's outputs and then the iteration's manifest,
so what the store's manifests name was there before them. What is there already with the same content hash is not moved.
Whoever opens the run holds its lease.

A store that is away or slow delays the uploads, not the run: what is missing follows later, at the latest when the run
is opened again on the same machine. Opening a run needs the store, for another machine may have gone further.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

from components.errors import UserError
from components.storage import content_hash
from tasks.copy import RUN_FILES, Copy, outputs_of
from tasks.lease import Lease, LostError
from tasks.objects import one_line, patiently

logger = logging.getLogger("trace")

AGAIN_SECONDS = 30.0  # between attempts while the store is away

_open: dict[Path, Copy] = {}


def store_of(path: Path) -> Store | None:
    """The store of the run in this folder, while it is held."""
    return store if isinstance(store := _open.get(path), Store) else None


def has_hash(path: Path, expected: str) -> bool:
    """Whether a file or folder of a run has this content hash: here or, brought from there now, in the run's store."""
    if path.exists() and content_hash(path) == expected:
        return True
    copy = next((_open[parent] for parent in path.parents if parent in _open), None)
    return copy is not None and copy.fetch(path, expected)


def is_there(path: Path) -> bool:
    """Whether a path exists: here or, brought from there now, in the run's store as its iteration's manifest says."""
    if path.exists():
        return True
    manifest = path.with_name("manifest.json")
    expected = (outputs_of(manifest.read_bytes()) or {}).get(path.name) if manifest.exists() else None
    return expected is not None and has_hash(path, expected)


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
    copy = Copy(url, path)
    if not copy.pull():
        raise UserError(f"no run in {url}")
    if not copy.own.exists():
        copy.own.write_text("a copy to read")
    _open[path] = copy
    return path


class Store(Copy):
    """The copy of a run in a store, held to write it."""

    def __init__(self, url: str, path: Path) -> None:
        super().__init__(url, path)
        self.lease = Lease(
            self.objects.fs, self.objects.at(".lease"), f"run {path.name} in {self.url.rpartition('/')[0]}"
        )
        self._todo: deque[Callable[[], None]] = deque()  # in order: what is new is safe there before the old goes
        self._wake, self._closing = threading.Event(), threading.Event()
        self._failure: str | None = None
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self) -> None:
        """Takes the lease, brings the manifests, and starts uploading what the store lacks."""
        self.reach(self.lease.acquire)
        try:
            self.pull()
            self.reach(lambda: self.objects.write(".writer", self.lease.token.encode()))
        except BaseException:
            self.lease.release()
            raise
        self.own.write_text(self.lease.token)
        self._todo.extend(partial(self._push, name) for name in RUN_FILES)
        for iteration in sorted((self.path / "iterations").glob("[0-9]*")):
            for manifest in sorted(iteration.rglob("manifest.json"), reverse=True):  # those of its shards first
                self._todo.append(partial(self._push, self.name(manifest)))
        self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """Waits for the last uploads; where the store is away, says what is missing there."""
        if self._thread.is_alive():
            self._closing.set()
            self._wake.set()
            self._thread.join()
        self.lease.release()
        if self._failure is not None:
            logger.warning(
                "%s does not have all of the run (%s); %s has: to push it, continue the run here",
                self.url, self._failure, self.path,
            )  # fmt: skip

    def notify(self, manifest: Path) -> None:
        """Says that a stage has written this manifest; raises a UserError if the lease was lost."""
        self._todo.append(partial(self._push, self.name(manifest)))
        self._wake.set()
        if self._lost is not None:
            raise UserError(self._lost)

    def drop(self, path: Path) -> None:
        """Removes a file or folder in the store, once all that is new is safe there."""
        self._todo.append(partial(self._remove, self.name(path)))

    def has(self, path: str) -> bool:
        """Whether the store has this output of a stage."""
        return path.removeprefix(f"{self.path}/") in self.there

    def _work(self) -> None:
        while True:
            self._wake.wait(AGAIN_SECONDS if self._failure else None)
            self._wake.clear()
            closing = self._closing.is_set()
            try:
                self._sync()
                self._failure = None
            except LostError as error:
                self._lost = self._failure = str(error)
                return
            except Exception as error:  # whatever a store raises: the run goes on
                if self._failure is None:
                    logger.warning("%s is away (%s); the run goes on, uploads follow", self.url, one_line(error))
                self._failure = one_line(error)
            if closing:
                return

    def _sync(self) -> None:
        patiently(self.lease.check)
        while self._todo:
            self._todo[0]()
            self._todo.popleft()
        for name in RUN_FILES:
            self._push(name)

    def _push(self, name: str) -> None:
        """Uploads a small file; if it is a manifest, the outputs that it names before it."""
        try:
            content = (self.path / name).read_bytes()
        except FileNotFoundError:  # not there yet, or dropped
            return
        if name.endswith("manifest.json"):
            outputs = outputs_of(content)
            if outputs is None:  # damaged here: what is there is better
                return
            for relative, expected in outputs.items():
                self._put(name[:-13] + relative, expected)
        if self.there.get(name) != (now := sha256(content).hexdigest()):
            self.objects.write(name, content)
            self.there[name] = now

    def _put(self, name: str, expected: str) -> None:
        """Uploads an output that is what its manifest says; one that is being made anew follows at its stage's end."""
        path = self.path / name
        if self.there.get(name) == expected or not path.exists():
            return
        with suppress(FileNotFoundError):  # dropped, or made anew, while it is read
            if content_hash(path) == expected:
                self._remove(name)
                self.objects.put(name, path)
                if content_hash(path) == expected:
                    self.there[name] = expected

    def _remove(self, name: str) -> None:
        if self.objects.below(name):
            self.there.pop(name, None)
            self.objects.remove(name)
