"""The copy of a run in a store, as one reads it: what lies there, whole, and how it comes here.

Opening a run brings its manifests; an output is fetched when a stage asks for it, and taken only if its content hash is
the one that the manifest names. What is here already with that hash is not moved.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from components.errors import UserError
from components.storage import atomic_path, content_hash, value_hash
from tasks.objects import Objects, one_line, patiently

T = TypeVar("T")
logger = logging.getLogger("trace")

RUN_FILES = ("params.yaml", "manifest.json", "metrics.jsonl", "summary.json")
SMALL = re.compile(r"iterations/.+/(manifest|metrics)\.json|\.writer|" + "|".join(map(re.escape, RUN_FILES)))


class Copy:
    """Names are relative to the run's folder, here and there.

    Methods raise a UserError where the store cannot be reached.
    """

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url.rstrip("/"), path
        self.own = path / ".writer"  # the token under which this folder last wrote to the store
        self.objects = Objects(self.url)
        self.there: dict[str, str] = {}  # content hashes of what lies in the store, whole

    def pull(self) -> bool:
        """Brings the manifests; returns whether there is a run.

        The store's win where the last to write there was another folder than this one; what this one had not uploaded
        by then is made anew.
        """
        self.reach(self.objects.look)
        names = self.objects.names
        if "manifest.json" not in names:
            return False
        if (self.path / "manifest.json").exists() and not self.own.exists():
            raise UserError(
                f"{self.path} and {self.url} are two runs of one name; move one, or choose another --run-id"
            )
        contents = self.reach(lambda: self.objects.read([name for name in names if SMALL.fullmatch(name)]))
        writer = contents.pop(".writer", b"").decode()
        newer = not (self.own.exists() and self.own.read_text() == writer)
        outputs: dict[str, str] = {}
        for name, content in contents.items():
            mine = self.path / name
            if not mine.exists() or (newer and mine.read_bytes() != content):
                with atomic_path(mine) as temporary:
                    temporary.write_bytes(content)
            if name.endswith("manifest.json"):
                outputs |= {name[:-13] + relative: value for relative, value in (outputs_of(content) or {}).items()}
        known = names | {parent.as_posix() for name in names for parent in Path(name).parents}
        self.there = {name: value for name, value in outputs.items() if name in known}  # others were dropped
        self.there |= {name: sha256(content).hexdigest() for name, content in contents.items()}
        for manifest in list(self.path.glob("iterations/**/manifest.json")) if newer else ():
            if self.name(manifest) not in names:
                manifest.unlink()
        return True

    def fetch(self, path: Path, expected: str) -> bool:
        """Brings a file or folder of the run; returns whether the store has it with the expected content hash."""
        name = self.name(path)
        if not self.objects.below(name):
            return False
        try:
            with atomic_path(path) as temporary:
                self.reach(lambda: self.objects.get(name, temporary))
                if content_hash(temporary) != expected:
                    raise _DamagedError
        except _DamagedError:
            logger.warning("%s/%s is damaged", self.url, name)
            self.there.pop(name, None)
            return False
        return True

    def name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def reach(self, work: Callable[[], T]) -> T:
        try:
            return patiently(work)
        except UserError:
            raise
        except Exception as error:  # every store has kinds of its own
            advice = "mend it, or go on with what is on this machine: --set run.store=null"
            raise UserError(f"run.store: cannot reach {self.url} ({one_line(error)}); {advice}") from error


class _DamagedError(Exception):
    pass


def outputs_of(content: bytes) -> dict[str, str] | None:
    """The outputs that a run's or an iteration's manifest names, with their hashes; None where it is damaged."""
    try:
        manifest = json.loads(content)
        if manifest.pop("seal") != value_hash(manifest):
            return None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    entries = [manifest] if "run_id" in manifest else manifest.values()
    return {relative: value for entry in entries for relative, value in entry.get("outputs", {}).items()}
