"""Search by a server of the user's own, and results that are recorded so that a second run needs no server.

The server speaks the form of Search-R1 (github.com/PeterGriffinJin/Search-R1, search_r1/search/retrieval_request.py):

    POST /retrieve   {"queries": ["...", ...], "topk": 3, "return_scores": true}
    answer           {"result": [[{"document": {"title": ..., "text": ...}, "score": 0.9}, ...], ...]}

A document may also hold `contents`, with the title in its first line, and may stand without a score.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from components.environments.search.retrieval import Passage, RetrievalError, Retriever, passage_of
from components.errors import UserError
from components.secrets import masked, without_credentials


@dataclass(frozen=True)
class HttpRetriever:
    """Asks a server.

    Attributes:
        url: Of the whole endpoint, e.g. ``http://127.0.0.1:8000/retrieve``.
        top_k: Passages per query.
        timeout: Seconds for one request as a whole, however slowly its bytes drip in.
        retries: Further attempts after a time-out, a lost connection or a server's fault (5xx).
        pause: Seconds before the first of them; doubled for each that follows.
    """

    url: str
    top_k: int = 3
    timeout: float = 30.0
    retries: int = 2
    pause: float = 0.5

    @property
    def shown(self) -> str:
        """The URL as messages show it."""
        return without_credentials(self.url)

    def retrieve(self, queries: Sequence[str]) -> list[list[Passage]]:
        if not queries:
            return []
        with ThreadPoolExecutor(1) as thread:  # an event loop of its own, whatever the caller's thread runs
            answer = thread.submit(asyncio.run, self._ask(list(queries))).result()
        return self._passages(answer, len(queries))

    async def _ask(self, queries: list[str]) -> Any:
        import httpx

        settings: Any = {
            "timeout": None,  # that of the whole request holds, below
            "verify": self.url.startswith("https:"),  # reading the certificates takes longer than many a search
            "trust_env": not is_here(self.url),  # no proxy stands between this machine and itself
        }
        body = {"queries": queries, "topk": self.top_k, "return_scores": True}
        fault = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self.timeout), httpx.AsyncClient(**settings) as client:
                    answer = await client.post(self.url, json=body)
            except TimeoutError:
                fault = f"no answer within {self.timeout:g} s"
            except (httpx.TransportError, httpx.InvalidURL, ValueError, ImportError) as error:  # also for its proxy
                fault = str(error) or type(error).__name__
            else:
                if answer.status_code == 200:
                    return _json(answer.content, self.shown)
                fault = f"status {answer.status_code}"
                if answer.status_code < 500:
                    break
        raise RetrievalError(masked(f"{self.url}: {fault} for {len(queries)} queries, the first {queries[0][:80]!r}"))

    def _passages(self, answer: Any, queries: int) -> list[list[Passage]]:
        result = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(result, list) or [type(found) for found in result] != [list] * queries:
            raise RetrievalError(f"{self.shown}: expected a 'result' with a list for each of {queries} queries")
        try:
            return [[self._passage(entry) for entry in found[: self.top_k]] for found in result]
        except (UserError, TypeError, ValueError) as error:
            raise RetrievalError(f"{self.shown}: a document without text: {error}") from None

    def _passage(self, entry: Any) -> Passage:
        if not isinstance(entry, dict):
            raise TypeError(f"found {type(entry).__name__}")
        document = entry.get("document", entry)
        if not isinstance(document, dict):
            raise TypeError(f"found {type(document).__name__}")
        found = passage_of(document, self.shown, 0)
        score = entry.get("score")
        return Passage(found.title, found.text, None if score is None else float(score))


def is_here(url: str) -> bool:
    """Whether a URL is of a server on this machine."""
    host = ""
    with suppress(ValueError):  # what is no URL, or no address
        host = urlsplit(url).hostname or ""
        address = ip_address(host)
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


class Recorded:
    """Answers from a record where it can, and asks and records where it cannot.

    The first answer to a query stays its answer, for all processes that share the file, so that runs repeat even if
    the server's index changes or the server is gone.

    Args:
        path: The record, an SQLite file.
        settings: What answers depend on besides the query (server, index, number of passages); JSON-like. Records
            under other settings are not used.
        retriever: Who is asked; None replays only.

    Raises:
        UserError: if the file is no record.
    """

    def __init__(self, path: Path, settings: dict[str, Any], retriever: Retriever | None = None) -> None:
        self.path, self.retriever = path, retriever
        self.settings = json.dumps(settings, sort_keys=True)
        if retriever is None and not path.is_file():
            raise UserError(f"{path}: no such record of searches, and no server to ask")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(self._connect()) as base, base:
                base.execute(
                    "CREATE TABLE IF NOT EXISTS answers "
                    "(settings TEXT, query TEXT, passages TEXT NOT NULL, PRIMARY KEY (settings, query)) WITHOUT ROWID"
                )
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path}: not a record of searches ({error})") from None

    def retrieve(self, queries: Sequence[str]) -> list[list[Passage]]:
        with closing(self._connect()) as base:
            known = {query: found for query in queries if (found := self._read(base, query)) is not None}
            if missing := [query for query in dict.fromkeys(queries) if query not in known]:
                if self.retriever is None:
                    raise RetrievalError(f"{self.path}: no record of {missing[0][:80]!r} under {self.settings}")
                answers = self.retriever.retrieve(missing)
                rows = [
                    (self.settings, _key(query), json.dumps([asdict(passage) for passage in found]))
                    for query, found in zip(missing, answers, strict=True)
                ]
                with base:
                    base.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)
                known |= {query: self._read(base, query) or [] for query in missing}
        return [known[query] for query in queries]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60)

    def _read(self, base: sqlite3.Connection, query: str) -> list[Passage] | None:
        where = (self.settings, _key(query))
        row = base.execute("SELECT passages FROM answers WHERE settings = ? AND query = ?", where).fetchone()
        return None if row is None else [Passage(**passage) for passage in json.loads(row[0])]


def _key(query: str) -> str:
    """The query as SQLite can hold it: lone surrogates and zero bytes are escaped."""
    return json.dumps(query)


def _json(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RetrievalError(f"{url}: the answer is no JSON: {str(error)[:100]}") from None
