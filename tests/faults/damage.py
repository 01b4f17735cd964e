"""Ways to harm a file of a run, and what may come of it: the end of an undisturbed run, or one line that names it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.attempts import Ending, left_behind


def _flip(path: Path, foreign: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "cut": lambda path, foreign: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": _flip,
    "empty": lambda path, foreign: path.write_bytes(b""),
    "foreign": lambda path, foreign: shutil.copyfile(foreign, path),
    "deleted": lambda path, foreign: path.unlink(),
}


def files_of(root: Path) -> list[str]:
    """The files of the run and of its data that a continued run could meet."""
    return sorted(
        str(path.relative_to(root))
        for folder in ("runs/r", "data")
        for path in (root / folder).rglob("*")
        if path.is_file() and path.name != ".lock"
    )


def counterpart(file: str, other: Path) -> Path:
    """The file of the same kind in another project, whose data lie in folders of other names."""
    parts = Path(file).parts
    if parts[0] == "data":
        return next((other / Path(*parts[:-2])).glob(f"*/{parts[-1]}"))
    return other / file


def outcome(ending: Ending, root: Path, wanted: dict[str, Any], file: str) -> str:
    """What came of a damage.

    Returns:
        ``as undisturbed``; ``named`` in one line that ended the command; ``left as it was``: nothing read it, and all
        else is as undisturbed; else a text that begins with ``FAULT``.
    """
    if ending.code == 2:
        lines = [line for line in ending.said.splitlines() if line.startswith("Error: ")]
        name = Path(file).parent.name if Path(file).parent.name in ("policy", "predictor") else Path(file).name
        folder = file.startswith("data/") and str(Path(file).parent) in ending.said
        told = len(lines) == 1 and (name in lines[0] or folder) and "Traceback" not in ending.said
        return "named" if told else f"FAULT: not named: {ending.said[-300:]}"
    if ending.code:
        return f"FAULT: code {ending.code}: {ending.said[-300:]}"
    found = left_behind(root / "runs" / "r")
    differing = {key for key in wanted.keys() | found if wanted.get(key) != found.get(key)}
    if not differing:
        return "as undisturbed"
    return "left as it was" if {f"runs/r/{key}" for key in differing} == {file} else f"FAULT: {sorted(differing)}"
