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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from components.errors import UserError
from components.storage import atomic_path, content_hash, value_hash
from tasks.lease import Lease, LostError
from tasks.objects import Objects, one_line, patiently

T = TypeVar("T")
logger = logging.getLogger("trace")

AGAIN_SECONDS = 30.0  # between attempts while the store is away
RUN_FILES = ("params.yaml", "manifest.json", "metrics.jsonl", "summary.json")
SMALL = re.compile(r"iterations/.+/(manifest|metrics)\.json|\.writer|" + "|".join(map(re.escape, RUN_FILES)))

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
    expected = (_outputs(manifest.read_bytes()) or {}).get(path.name) if manifest.exists() else None
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
    if not store.own.exists():
        store.own.write_text("a copy to read")
    _open[path] = store
    return path


class Store:
    """The copy of one run in a store; names are relative to the run's folder, here and there.

    Methods raise a UserError where the store cannot be reached.
    """

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url.rstrip("/"), path
        self.own = path / ".writer"  # the token under which this folder last wrote to the store
        self.objects = Objects(self.url)
        self.lease = Lease(self.objects.fs, self.objects.at(".lease"), f"run {path.name} in {url.rpartition('/')[0]}")
        self._there: dict[str, str] = {}  # content hashes of what lies in the store, whole
        self._todo: deque[Callable[[], None]] = deque()  # in order: what is new is safe there before the old goes
        self._wake, self._closing = threading.Event(), threading.Event()
        self._failure: str | None = None
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self) -> None:
        """Takes the lease, brings the manifests, and starts uploading what the store lacks."""
        self._reach(self.lease.acquire)
        try:
            self.pull()
            self._reach(lambda: self.objects.write(".writer", self.lease.token.encode()))
        except BaseException:
            self.lease.release()
            raise
        self.own.write_text(self.lease.token)
        self._todo.extend(partial(self._push, name) for name in RUN_FILES)
        for iteration in sorted((self.path / "iterations").glob("[0-9]*")):
            for manifest in sorted(iteration.rglob("manifest.json"), reverse=True):  # those of its shards first
                self._todo.append(partial(self._push, self._name(manifest)))
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
        self._todo.append(partial(self._push, self._name(manifest)))
        self._wake.set()
        if self._lost is not None:
            raise UserError(self._lost)

    def drop(self, path: Path) -> None:
        """Removes a file or folder in the store, once all that is new is safe there."""
        self._todo.append(partial(self._remove, self._name(path)))

    def has(self, path: str) -> bool:
        """Whether the store has this output of a stage."""
        return path.removeprefix(f"{self.path}/") in self._there

    def pull(self) -> bool:
        """Brings the manifests; returns whether there is a run.

        The store's win where the last to write there was another folder than this one; what this one had not uploaded
        by then is made anew.
        """
        self._reach(self.objects.look)
        names = self.objects.names
        if "manifest.json" not in names:
            return False
        if (self.path / "manifest.json").exists() and not self.own.exists():
            raise UserError(
                f"{self.path} and {self.url} are two runs of one name; move one, or choose another --run-id"
            )
        contents = self._reach(lambda: self.objects.read([name for name in names if SMALL.fullmatch(name)]))
        writer = contents.pop(".writer", b"").decode()
        newer = not (self.own.exists() and self.own.read_text() == writer)
        outputs: dict[str, str] = {}
        for name, content in contents.items():
            mine = self.path / name
            if not mine.exists() or (newer and mine.read_bytes() != content):
                with atomic_path(mine) as temporary:
                    temporary.write_bytes(content)
            self._there[name] = sha256(content).hexdigest()
            if name.endswith("manifest.json"):
                outputs |= {name[:-13] + relative: value for relative, value in (_outputs(content) or {}).items()}
        known = names | {parent.as_posix() for name in names for parent in Path(name).parents}
        self._there |= {name: value for name, value in outputs.items() if name in known}  # others were dropped
        for manifest in list(self.path.glob("iterations/**/manifest.json")) if newer else ():
            if self._name(manifest) not in names:
                manifest.unlink()
        return True

    def fetch(self, path: Path, expected: str) -> bool:
        """Brings a file or folder of the run; returns whether the store has it with the expected content hash."""
        name = self._name(path)
        if not self.objects.below(name):
            return False
        try:
            with atomic_path(path) as temporary:
                self._reach(lambda: self.objects.get(name, temporary))
                if content_hash(temporary) != expected:
                    raise _DamagedError
        except _DamagedError:
            logger.warning("%s/%s is damaged", self.url, name)
            self._there.pop(name, None)
            return False
        return True

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
            outputs = _outputs(content)
            if outputs is None:  # damaged here: what is there is better
                return
            for relative, expected in outputs.items():
                self._put(name[:-13] + relative, expected)
        if self._there.get(name) != (now := sha256(content).hexdigest()):
            self.objects.write(name, content)
            self._there[name] = now

    def _put(self, name: str, expected: str) -> None:
        """Uploads an output that is what its manifest says; one that is being made anew follows at its stage's end."""
        path = self.path / name
        if self._there.get(name) == expected or not path.exists():
            return
        with suppress(FileNotFoundError):  # dropped, or made anew, while it is read
            if content_hash(path) == expected:
                self._remove(name)
                self.objects.put(name, path)
                if content_hash(path) == expected:
                    self._there[name] = expected

    def _remove(self, name: str) -> None:
        if self.objects.below(name):
            self._there.pop(name, None)
            self.objects.remove(name)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _reach(self, work: Callable[[], T]) -> T:
        try:
            return patiently(work)
        except UserError:
            raise
        except Exception as error:  # every store has kinds of its own
            advice = "mend it, or go on with what is on this machine: --set run.store=null"
            raise UserError(f"run.store: cannot reach {self.url} ({one_line(error)}); {advice}") from error


class _DamagedError(Exception):
    pass


def _outputs(content: bytes) -> dict[str, str] | None:
    """The outputs that a run's or an iteration's manifest names, with their hashes; None where it is damaged."""
    try:
        manifest = json.loads(content)
        if manifest.pop("seal") != value_hash(manifest):
            return None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    entries = [manifest] if "run_id" in manifest else manifest.values()
    return {relative: value for entry in entries for relative, value in entry.get("outputs", {}).items()}
