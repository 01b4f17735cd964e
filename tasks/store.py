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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from components.errors import UserError
from components.storage import atomic_path, content_hash, read_json
from tasks.lease import Lease, LostError
from tasks.objects import Objects, one_line, patiently

T = TypeVar("T")
logger = logging.getLogger("trace")

AGAIN_SECONDS = 30.0  # between attempts while the store is away
RUN_FILES = ("params.yaml", "manifest.json", "metrics.jsonl", "summary.json")
SMALL = re.compile(
    r"\.writer|iterations/.+/(manifest|metrics)\.json|" + "|".join(re.escape(name) for name in RUN_FILES)
)

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
    store.mark()
    _open[path] = store
    return path


class Store:
    """The copy of one run in a store. Methods raise a UserError where the store cannot be reached."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url.rstrip("/"), path
        self.objects = Objects(self.url)
        self.lease = Lease(self.objects.fs, self.objects.at(".lease"), f"run {path.name} in {url.rpartition('/')[0]}")
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
            self._reach(lambda: self.objects.write(".writer", self.lease.token.encode()))
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
        self._reach(self.objects.look)
        if "manifest.json" not in self.objects.names:
            return False
        if (self.path / "manifest.json").exists() and not self._own.exists():
            raise UserError(
                f"{self.path} and {self.url} are two runs of one name; move one, or choose another --run-id"
            )
        contents = self._reach(lambda: self.objects.read([n for n in self.objects.names if SMALL.fullmatch(n)]))
        writer = contents.pop(".writer", b"").decode()
        newer = not (self._own.is_file() and self._own.read_text() == writer)
        for name, content in contents.items():
            mine = self.path / name
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
        there = {parent.as_posix() for name in self.objects.names for parent in (Path(name), *Path(name).parents)}
        self._hashes = {name: value for name, value in self._hashes.items() if name in there}  # others were dropped
        if newer:
            for manifest in list(self.path.glob("iterations/**/manifest.json")):
                if manifest.relative_to(self.path).as_posix() not in self.objects.names:
                    manifest.unlink()
        return True

    def mark(self) -> None:
        """Says that this machine's folder is a copy, not another run of the same name."""
        if not self._own.exists():
            self._own.write_text("a copy to read")

    def fetch(self, path: Path, expected: str) -> bool:
        """Brings a file or folder of the run; returns whether the store has it with the expected content hash."""
        name = path.relative_to(self.path).as_posix()
        if not self.objects.below(name):
            return False
        try:
            with atomic_path(path) as temporary:
                self._reach(lambda: self.objects.get(name, temporary))
                if content_hash(temporary) != expected:
                    raise _DamagedError
        except _DamagedError:
            logger.warning("%s/%s is damaged", self.url, name)
            self._hashes.pop(name, None)
            return False
        return True

    def drop(self, path: Path) -> None:
        """Removes a file or folder in the store, once all that is new is safe there."""
        if (name := path.relative_to(self.path).as_posix()) in self._hashes:
            self._drops.add(name)

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
        """Uploads what the store lacks: outputs before the manifests that name them, then deletes."""
        patiently(self.lease.check)
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
                    self.objects.write(name, content)
                    self._hashes[name] = sha256(content).hexdigest()
        for name in list(self._drops):
            self.objects.remove(name)
            self._hashes.pop(name, None)
            self._drops.discard(name)

    def _sync_stages(self, manifest: Path) -> dict[str, Any]:
        """Uploads what a manifest names, and it; returns what the store then has of it."""
        name, content = manifest.relative_to(self.path).as_posix(), manifest.read_bytes()
        stages = _stages(content)
        # Where a stage is making an output anew, its end tells again.
        if stages != self._stages.get(name, {}) and self._put(manifest.parent, _outputs(stages)):
            self.objects.write(name, content)
            self._stages[name] = stages
        return dict(self._stages.get(name, {}))

    def _put(self, folder: Path, outputs: dict[str, str]) -> bool:
        """Uploads outputs that are not there with the same hash; returns whether all stayed as they were meanwhile."""
        for relative, expected in outputs.items():
            path, name = folder / relative, (folder / relative).relative_to(self.path).as_posix()
            if self._hashes.get(name) == expected or not path.exists():
                continue  # or dropped here: what came after it is there, or on its way
            files = [f for f in path.rglob("*") if f.is_file() and f.name[0] != "."] if path.is_dir() else [path]
            try:
                if content_hash(path) != expected:
                    return False
                if self.objects.below(name):
                    self.objects.remove(name)
                self.objects.put({file.relative_to(self.path).as_posix(): file for file in files})
                whole = content_hash(path) == expected
            except FileNotFoundError:  # while it was being read
                whole = False
            if not path.exists():  # dropped meanwhile
                self._drops.add(name)
                continue
            if not whole:
                return False
            self._hashes[name] = expected
        return True

    @property
    def _own(self) -> Path:
        """Holds the token under which this folder last wrote to the store."""
        return self.path / ".writer"

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


def _stages(content: bytes) -> dict[str, Any]:
    """A manifest's stages; none where it is damaged."""
    try:
        stages = json.loads(content)
        stages.pop("seal", None)
        _outputs(stages)
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return dict(stages)


def _outputs(stages: dict[str, Any]) -> dict[str, str]:
    return {relative: value for entry in stages.values() for relative, value in entry["outputs"].items()}
