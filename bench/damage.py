"""Every file of a finished run, harmed in five ways; then the run is continued. What came of it, counted.

Run from the repository: OMP_NUM_THREADS=1 nice -n 10 python -m bench.damage [folder]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import tests.faults.preload  # noqa: F401  # children are forked from this process
from bench.results import record
from tests.faults.attempts import attempt, left_behind, project, role
from tests.faults.damage import DAMAGES, counterpart, files_of, outcome
from tests.faults.runs import SMALL

SHORT = SMALL | {"run": SMALL["run"] | {"keep_policies": 2}}
LONG = SHORT | {"run": SHORT["run"] | {"iterations": SHORT["run"]["iterations"] + 1}}
OTHER = SHORT | {
    "run": SHORT["run"] | {"seed": 1},
    "environment": SHORT["environment"] | {"train_prompts": 65},
    "policy": SHORT["policy"] | {"warmup": SHORT["policy"]["warmup"] | {"seed": 1}},
}


def main(folder: Path) -> None:
    finished, alone = project(folder / "finished", SHORT), project(folder / "alone", LONG)
    other = project(folder / "other", OTHER)
    for root in (finished, alone, other):
        if (end := attempt(root)).code:
            raise SystemExit(end.said)
    wanted = left_behind(alone / "runs" / "r")
    counts: Counter[tuple[str, str, str]] = Counter()
    faults = []
    for file in reversed(files_of(finished)):  # the newest iteration first
        for how, damage in DAMAGES.items():
            root = folder / "damaged"
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(finished, root, symlinks=True)
            project(root, LONG)
            damage(root / file, counterpart(file, other))
            result = outcome(attempt(root), root, wanted, file)
            counts[role(file), how, result.partition(":")[0]] += 1
            print(f"{file}, {how}: {result}", flush=True)
            faults += [f"{file}, {how}: {result}"] * result.startswith("FAULT")
    _tell(counts)
    print(f"\n{sum(counts.values())} damages, {len(faults)} faults", *faults, sep="\n")
    record({"damages": sum(counts.values()), "damages_faults": len(faults)})


def _tell(counts: Counter[tuple[str, str, str]]) -> None:
    print("| file | " + " | ".join(DAMAGES) + " |\n" + "| --- " * (len(DAMAGES) + 1) + "|")
    for file in dict.fromkeys(file for file, *_ in counts):
        cells = (
            ", ".join(f"{result} ({n})" for (f, h, result), n in counts.items() if (f, h) == (file, how))
            for how in DAMAGES
        )
        print(f"| {file} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary).absolute())
