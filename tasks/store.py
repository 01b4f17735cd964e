"""A run in an object store: any machine can continue it, whatever became of the one that began it.

The run's folder stays local, and the store has the same layout. After each stage a thread uploads the stage's outputs
and then the manifest that names them, so what a manifest in the store names was there before it. Opening a run
downloads its manifests; an output follows when a stage asks for it, and counts only with the hash in its manifest.
One process writes: the one that holds the run's lease. docs/scale.md says what happens when the store is away.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from components.errors import MissingExtraError, UserError
from components.storage import atomic_path, content_hash, value_hash

logger = logging.getLogger("trace")

RENEW_SECONDS, STALE_SECONDS = 30.0, 180.0  # a lease is renewed; one that was not for so long may be taken over

RUN_FILES = ("params.yaml", "manifest.json", "metrics.jsonl", "summary.json")
SMALL = re.compile(r"iterations/.+/(manifest|metrics)\.json|\.writer|" + "|".join(map(re.escape, RUN_FILES)))

_readable: dict[Path, Store] = {}  # by the run's folder
_held: dict[Path, Store] = {}  # those of them that this process writes


def store_of(path: Path) -> Store | None:
    """The store of the run in this folder, if this process holds it to write."""
    return _held.get(path)


def has_hash(path: Path, expected: str) -> bool:
    """Whether a file or folder of a run has this content hash: here or, downloaded now, in the run's store."""
    if path.exists() and content_hash(path) == expected:
        return True
    store = next((_readable[parent] for parent in path.parents if parent in _readable), None)
    return store is not None and store.fetch(path, expected)


def is_there(path: Path) -> bool:
    """Whether a path exists: here or, downloaded now, in the run's store as the manifest beside it says."""
    if path.exists():
        return True
    manifest = path.with_name("manifest.json")
    outputs = outputs_of(manifest.name, manifest.read_bytes()) if manifest.exists() else None
    return has_hash(path, (outputs or {}).get(path.name, ""))


def open_copy(url: str, folder: Path) -> Path:
    """Opens a run in a store to read it, in `folder`; `url` ends in its id. Raises a UserError where there is none."""
    path = (folder / url.rstrip("/").rpartition("/")[2]).absolute()
    store = Store(url, path)
    if not store.pull():
        raise UserError(f"no run in {url}")
    store.writer.touch()  # so that it is known to be a copy
    _readable[path] = store
    return path


@contextmanager
def held(path: Path, url: str | None) -> Iterator[None]:
    """Holds a run in a store (a folder for all runs; None: no store) to write it; makes both copies the same.

    Raises a UserError if another process holds it, or the store cannot be reached.
    """
    if url is None:
        yield
        return
    store = Store(f"{url.rstrip('/')}/{path.name}", path)
    with store.lease:
        store.pull()
        with reached(store.url):
            write(store.fs, ".writer", store.lease.token.encode())
        store.writer.write_text(store.lease.token)
        _held[path] = _readable[path] = store
        try:
            for manifest in sorted(path.glob("iterations/**/manifest.json")):
                store.notify(manifest)
            yield
        finally:
            del _held[path], _readable[path]
            store.finish()


class Store:
    """A run's copy in a store. Names are paths in the run's folder; a thread makes all changes, one after the other."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path, self.fs = url.rstrip("/"), path, file_system(url)
        self.writer = path / ".writer"  # in the store, too: the token of the lease under which it was last written
        self.earlier = self.writer.read_text() if self.writer.exists() else None
        self.lease = Lease(self.url, self.fs, self.earlier)
        self.there: dict[str, str] = {}  # content hashes of the files and folders that the store has
        self._changes: list[Callable[[], None]] = []  # to be made
        self._worker = ThreadPoolExecutor(1, "store")
        self._failure: Exception | None = None  # of the last change

    def pull(self) -> bool:
        """Downloads manifests and metrics; returns whether there is a run.

        Where another folder was the last to write, the store's files win; what this one had not uploaded is made anew.
        """
        with reached(self.url):
            self.fs.invalidate_cache()
            names = set(self.fs.find(""))
            if "manifest.json" not in names:
                return False
            contents = self.fs.cat([name for name in names if SMALL.fullmatch(name)])
        if self.earlier is None and (self.path / "manifest.json").exists():
            raise UserError(f"{self.path} and {self.url} are two runs of one name; move one, or give another --run-id")
        is_older = self.earlier != contents.pop(".writer", b"").decode()
        for local in [*self.path.glob("iterations/**/manifest.json"), self.path / "summary.json"]:
            if is_older and self._name(local) not in names:
                local.unlink(missing_ok=True)
        names |= {parent.as_posix() for name in names for parent in Path(name).parents}
        for name, content in contents.items():
            outputs = outputs_of(name, content) or {}
            self.there |= {output: outputs[output] for output in outputs.keys() & names}
            local = self.path / name
            mine = local.read_bytes() if local.exists() else None
            if mine is None or (mine != content and (is_older or outputs_of(name, mine) is None)):
                with atomic_path(local, check=False) as temporary:  # as it is there; who reads it looks after damage
                    temporary.write_bytes(content)
        self.there |= {name: sha256(content).hexdigest() for name, content in contents.items()}
        return True

    def fetch(self, path: Path, expected: str) -> bool:
        """Downloads a file or folder of the run; returns whether the store has it with this content hash."""
        name = self._name(path)
        if self.there.get(name) != expected:
            return False
        with suppress(ValueError), atomic_path(path) as temporary:
            with reached(self.url):
                files = self.fs.find(name)
                self.fs.get(files, [f"{temporary}{file.removeprefix(name)}" for file in files])
            if content_hash(temporary) != expected:
                raise ValueError
            return True
        logger.warning("%s/%s is missing or damaged", self.url, name)
        self.there.pop(name, None)
        return False

    def has(self, path: str) -> bool:
        """Whether the store has this output of a stage."""
        return path.removeprefix(f"{self.path}/") in self.there

    def notify(self, manifest: Path) -> None:
        """Queues a manifest, to upload it after the outputs that it names; raises a UserError if the lease was lost."""
        if isinstance(self._failure, UserError):
            raise self._failure
        self._change(lambda: self._upload(self._name(manifest)))

    def drop(self, path: Path) -> None:
        """Queues a file or folder, to remove it once what is new by now is safe in the store."""
        self._change(lambda: self._remove(self._name(path)))

    def finish(self) -> None:
        """Waits for the last uploads; says so where the store is away and lacks some."""
        self._worker.shutdown(cancel_futures=True)
        self._changes.append(self._upload)
        self._make_changes()
        if self._failure is not None:
            logger.warning("%s lacks uploads (%.200r); to push them, continue %s", self.url, self._failure, self.path)

    def _change(self, change: Callable[[], None]) -> None:
        self._changes.append(change)
        self._worker.submit(self._make_changes)

    def _make_changes(self) -> None:
        try:
            while self._changes:
                self.lease.check()
                self._changes[0]()
                self._changes.pop(0)
            self._failure = None
        except Exception as error:  # whatever a store raises: the run goes on, and the next change tries again
            if self._failure is None and not isinstance(error, UserError):
                logger.warning("%s is away (%.200r); the run goes on, uploads follow", self.url, error)
            self._failure = error

    def _upload(self, *manifests: str) -> None:
        """Uploads small files that changed; before a manifest, the outputs that it names."""
        for name in (*RUN_FILES, *manifests):  # in this order: without RUN_FILES there is no run to continue
            with suppress(FileNotFoundError):  # not there yet, or dropped
                content = (self.path / name).read_bytes()
                for output, expected in (outputs_of(name, content) or {}).items():
                    self._upload_output(output, expected)
                if self.there.get(name) != (now := sha256(content).hexdigest()):
                    write(self.fs, name, content)
                    self.there[name] = now

    def _upload_output(self, name: str, expected: str) -> None:
        path = self.path / name
        with suppress(FileNotFoundError):  # it is dropped, or made anew, while it is read
            if self.there.get(name) == expected or content_hash(path) != expected:
                return  # one that is being made anew follows when its stage ends
            self._remove(name)
            files = [f for f in path.rglob("*") if f.is_file() and f.name[0] != "."] if path.is_dir() else [path]
            self.fs.put([str(file) for file in files], [self._name(file) for file in files])
            self.there[name] = expected

    def _remove(self, name: str) -> None:
        for known in [known for known in list(self.there) if f"{known}/".startswith(f"{name}/")]:
            self.there.pop(known, None)
        with suppress(FileNotFoundError):
            self.fs.rm(name, recursive=True)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()


class Lease:
    """The right to write a run: an object in its store, which the owner renews while a `with` block lasts.

    `earlier` is the token of this folder's last writer, which has ended: a folder has one writer at a time.
    """

    def __init__(self, url: str, fs: Any, earlier: str | None = None) -> None:
        self.url, self.fs, self.earlier, self.token = url, fs, earlier, uuid4().hex
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> None:
        """Takes the lease; raises a UserError if another process has it, or the store cannot be reached."""
        with reached(self.url):
            try:
                self._write("create")
            except FileExistsError:
                owner = self._owner()
                age = max(0.0, time.time() - owner.get("time", 0.0))
                if owner.get("token") not in (self.token, self.earlier) and age < STALE_SECONDS:
                    who = f"{owner['host']} (process {owner['pid']}, last sign {age:.0f} s ago)"
                    advice = f"end it there, or wait {STALE_SECONDS:.0f} s after its last sign"
                    raise UserError(f"{self.url} is being written on {who}; {advice}") from None
                self._write()  # of two that do so, one stops at its next upload
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._thread.join()
        with suppress(Exception):  # the store is away: the lease grows stale by itself
            self.check()
            self.fs.rm_file(".lease")

    def check(self) -> None:
        """Raises a UserError if the lease is no longer this process's."""
        owner = self._owner()
        if owner.get("token") != self.token:
            by = f"taken over by {owner['host']} (process {owner['pid']})" if owner else "removed"
            raise UserError(f"the lease of {self.url} was {by}; this process stops, so that two do not write it")

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            with suppress(Exception):  # the store is away for now, or the lease lost: the next upload says so
                self.check()
                self._write()

    def _owner(self) -> dict[str, Any]:
        with suppress(FileNotFoundError, ValueError):
            return dict(json.loads(self.fs.cat_file(".lease")))
        return {}

    def _write(self, mode: str = "overwrite") -> None:
        owner = {"token": self.token, "host": os.uname().nodename, "pid": os.getpid(), "time": time.time()}
        write(self.fs, ".lease", json.dumps(owner).encode(), mode)


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Turns what a store raises into a UserError. What fails for a moment, the store's package has tried again."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # every store has kinds of its own
        advice = "mend it, or go on with what is on this machine: --set run.store=null"
        raise UserError(f"run.store: cannot reach {url} ({error!r:.200}); {advice}") from error


def file_system(url: str) -> Any:
    """The fsspec file system whose paths are relative to a URL; raises a UserError where none can be made."""
    from fsspec import url_to_fs  # here, for most runs have no store
    from fsspec.implementations.dirfs import DirFileSystem

    try:
        fs, root = url_to_fs(url.rstrip("/"), **({"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}))
    except (ImportError, ValueError) as error:
        if isinstance(error, ImportError) and url.startswith("s3"):
            raise MissingExtraError(f"run.store: {url}", "s3") from error
        raise UserError(f"run.store={url!r}: {error}") from error
    return DirFileSystem(root, fs, skip_instance_cache=True)


def write(fs: Any, name: str, content: bytes, mode: str = "overwrite") -> None:
    """Writes an object that appears whole; with mode "create", raises a FileExistsError where there is one."""
    from fsspec.implementations.local import LocalFileSystem

    if not isinstance(fs.fs, LocalFileSystem):
        fs.pipe_file(name, content, mode=mode)
        return
    temporary, target = f"{fs.path}/{name}.{uuid4().hex}", f"{fs.path}/{name}"
    fs.fs.pipe_file(temporary, content)  # which empties a local file before it writes it
    try:
        (os.link if mode == "create" else os.replace)(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def outputs_of(name: str, content: bytes) -> dict[str, str] | None:
    """The outputs that a manifest names, with their hashes; None where it is damaged. Other files name none."""
    if not name.endswith("manifest.json"):
        return {}
    with suppress(ValueError, KeyError, AttributeError, TypeError):
        manifest, folder = json.loads(content), name.removesuffix("manifest.json")
        if manifest.pop("seal") == value_hash(manifest):
            entries = [manifest] if "run_id" in manifest else manifest.values()
            return {folder + output: value for entry in entries for output, value in entry.get("outputs", {}).items()}
    return None
