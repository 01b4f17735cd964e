"""Times BM25 search at three sizes of corpus; adds flat name -> number entries to bench/results.json.

The corpora are synthetic: passages of 40 words by Zipf's law over 200,000 words. A query holds six words of one
passage, none of them among the 100 most frequent, which stand for the stop words that a query leaves out. Seconds are
of CPU, on one thread.

Run from the repository: python -m bench.search [SIZE ...]
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bench.results import record
from components.environments.search.retrieval import Bm25, Passage

SIZES = (1_000, 100_000, 1_000_000)
VOCABULARY, LENGTH, STOP_WORDS, QUERY_WORDS, QUERIES = 200_000, 40, 100, 6, 200


def corpus(size: int, rng: np.random.Generator) -> tuple[list[Passage], list[str]]:
    """Passages, and queries that each name one of them."""
    law = np.cumsum(1.0 / np.arange(1, VOCABULARY + 1))
    words = np.array([f"w{rank}" for rank in range(VOCABULARY)], dtype=object)
    passages: list[Passage] = []
    queries: list[str] = []
    while len(passages) < size:
        count = min(10_000, size - len(passages))
        rank_PT = np.searchsorted(law, rng.random((count, LENGTH)) * law[-1])
        if not queries:
            chosen = [row[row >= STOP_WORDS][:QUERY_WORDS] for row in rank_PT[rng.integers(count, size=QUERIES)]]
            queries = [" ".join(words[row]) for row in chosen]
        passages += [Passage(f"p{len(passages) + n}", " ".join(words[row])) for n, row in enumerate(rank_PT)]
    return passages, queries


def measure(size: int, cache: Path) -> dict[str, float]:
    passages, queries = corpus(size, np.random.default_rng(0))
    start = time.process_time()
    search = Bm25(passages, cache)
    built = time.process_time()
    del passages
    found = search.retrieve(queries)
    seconds = time.process_time() - built
    assert all(found), "every query holds words of a passage"
    name = f"search_1e{int(np.log10(size))}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        f"{name}_build_s": built - start,
        f"{name}_queries_per_s": len(queries) / seconds,
        f"{name}_peak_mb": peak,  # of the process so far, the corpus in memory included
    }


def main() -> None:
    sizes = [int(float(text)) for text in sys.argv[1:]] or SIZES
    with tempfile.TemporaryDirectory() as cache:
        for size in sizes:
            record(measure(size, Path(cache)))


if __name__ == "__main__":
    main()
