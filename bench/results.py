"""Where the benchmarks put their figures: bench/results.json, a flat object name -> number that other tools read."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"


def record(numbers: dict[str, float]) -> None:
    """Merges the figures into the file and prints them."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | numbers, indent=1, sort_keys=True) + "\n")
    for name, number in numbers.items():
        print(f"{name:44} {number:.4g}")
