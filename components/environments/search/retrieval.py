"""Search over a corpus of passages: BM25 on this machine, with an index that is built once.

The index lies in a folder named by the hash of the corpus and of what made it; its arrays and texts are mapped into
memory, so that opening it costs nothing and processes share the pages. Results are deterministic: equal scores are
ordered by the passage's place in the corpus. For a corpus of many millions use a server of your own and
`components.environments.search.retrieval_http`.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from components.environments.files import field, read_rows
from components.errors import UserError
from components.storage import atomic_path, content_hash, value_hash

# Thai, Lao, Tibetan, Burmese, Khmer; kana and ideographs; Hangul, whose particles are written to the word before.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# What an index depends on besides its corpus; part of its folder's name.
RECIPE: dict[str, Any] = {
    "version": 2,  # of what `_words_of` does
    "method": "lucene",
    "k1": 1.5,
    "b": 0.75,
    "stemmer": "english",
    "words": rf"(?u)[\w{_UNSPACED}]+",
}
QUERY_CHARACTERS, QUERY_WORDS = 2000, 64  # what a query holds beyond this is not read
PASSAGE_SCHEMA = pa.schema([pa.field("title", pa.large_string()), pa.field("text", pa.large_string())])
_WORD, _MARK, _RUN = re.compile(RECIPE["words"]), re.compile("[\u0300-\u036f]"), re.compile(f"[{_UNSPACED}]+")


@dataclass(frozen=True)
class Passage:
    """A piece of text that a search can find.

    Attributes:
        title: Its title; may be empty.
        text: Its text.
        score: How well it fits the query, where a retriever says so; higher is better.
    """

    title: str
    text: str
    score: float | None = None


class Retriever(Protocol):
    """Who finds passages."""

    def retrieve(self, queries: Sequence[str]) -> list[list[Passage]]:
        """For each query the best passages, best first; none where nothing fits. Same query, same passages.

        Raises:
            RetrievalError: if the search itself failed: never an empty result.
        """


class RetrievalError(RuntimeError):
    """A search that could not be made."""


def load_corpus(path: Path | str) -> list[Passage]:
    """Reads a corpus from any file of `read_rows`.

    Rows hold `title` and `text`, or `contents` with the title in its first line; a .json file may also be one object
    that maps titles to texts. A text may be a list of sentences.

    Raises:
        UserError: if the file is missing, damaged or empty, or a passage has no text.
    """
    rows = read_rows(path)
    if len(rows) == 1 and not {"text", "contents", "paragraph_text"} & rows[0].keys():
        if not rows[0]:
            raise UserError(f"{path} holds no passages")
        return [Passage(title, _text(text, f"{path}, passage {title[:80]!r}")) for title, text in rows[0].items()]
    return [passage_of(row, path, number) for number, row in enumerate(rows)]


def passage_of(row: dict[str, Any], path: Path | str, number: int) -> Passage:
    """The passage that a row holds; see `load_corpus`."""
    if "contents" in row and "text" not in row:
        title, _, text = field(row, ("contents",), path, number).partition("\n")
        return Passage(title.strip().strip('"'), text.strip()) if text.strip() else Passage("", title.strip())
    text = _text(field(row, ("text", "paragraph_text"), path, number, object), f"{path}, row {number}")
    return Passage(field(row, ("title",), path, number) if row.get("title") else "", text)


def _text(value: Any, where: str) -> str:
    if isinstance(value, list) and value and all(isinstance(sentence, str) for sentence in value):
        value = " ".join(sentence.strip() for sentence in value)
    if isinstance(value, str) and value.strip():
        return value
    raise UserError(f"{where}: expected a text or a list of sentences, found {type(value).__name__} {str(value)[:40]}")


class Bm25:
    """BM25 by the package bm25s, on stemmed words without their accents.

    Scripts that put no blanks between words are indexed by their letters and pairs of neighbouring letters, and
    searched by the pairs. Stop words are searched only where a query holds nothing else.

    Args:
        corpus: A file for `load_corpus`, or the passages.
        cache: Folder of all indexes.
        top_k: Passages per query.

    Raises:
        UserError: if the corpus holds no words, or cannot be read.
    """

    def __init__(self, corpus: Path | str | Sequence[Passage], cache: Path, top_k: int = 3) -> None:
        if top_k < 1:
            raise UserError(f"top_k={top_k}: a search returns at least one passage")
        self.top_k = top_k
        corpus = Path(corpus) if isinstance(corpus, str) else corpus
        folder = cache / value_hash({"corpus": _corpus_hash(corpus), **RECIPE})[:16]
        try:
            self._open(folder)
        except Exception:  # absent, or damaged in one of many ways: made anew, and then it must open
            _write_index(corpus, folder)
            self._open(folder)

    def _open(self, folder: Path) -> None:
        import bm25s

        self.passages = pa.ipc.open_file(pa.memory_map(str(folder / "passages.arrow"))).read_all()
        self.index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        for name in ("data", "indices", "indptr"):
            self.index.scores[name] = np.asarray(self.index.scores[name])  # still mapped, but cheaper to slice

    def retrieve(self, queries: Sequence[str]) -> list[list[Passage]]:
        return [self._best(_query_words(query)) for query in queries]

    def _best(self, words: list[str]) -> list[Passage]:
        if not words:
            return []
        score_P = self.index.get_scores(words)
        rows = np.flatnonzero(score_P)  # Lucene's scores are never negative
        if len(rows) > self.top_k:
            rows = rows[score_P[rows] >= np.partition(score_P[rows], -self.top_k)[-self.top_k]]
        rows = rows[np.lexsort((rows, -score_P[rows]))][: self.top_k]
        titles, texts = self.passages["title"], self.passages["text"]
        return [Passage(titles[row].as_py(), texts[row].as_py(), float(score_P[row])) for row in rows.tolist()]


def _query_words(query: str) -> list[str]:
    from bm25s.stopwords import STOPWORDS_EN_PLUS
    from Stemmer import Stemmer

    words = _WORD.findall(_words_of(query[:QUERY_CHARACTERS], with_letters=False))[:QUERY_WORDS]
    kept = [word for word in words if word not in STOPWORDS_EN_PLUS] or words
    return list(Stemmer(RECIPE["stemmer"]).stemWords(kept))  # a stemmer is cheap, and not safe to share among threads


def _words_of(text: str, with_letters: bool) -> str:
    """Lower case, without accents; in scripts without blanks between words, blanks between the pairs of letters."""
    if text.isascii():
        return text.lower()

    def pairs(run: re.Match[str]) -> str:
        letters = run[0]
        grams = [a + b for a, b in pairwise(letters)]
        return f" {' '.join([*letters, *grams] if with_letters or not grams else grams)} "

    plain = _MARK.sub("", unicodedata.normalize("NFKD", text.lower()))
    return _RUN.sub(pairs, unicodedata.normalize("NFC", plain))


def _write_index(corpus: Path | Sequence[Passage], folder: Path) -> None:
    import bm25s
    from Stemmer import Stemmer

    passages = load_corpus(corpus) if isinstance(corpus, Path) else corpus
    texts = (_words_of(f"{passage.title}\n{passage.text}", with_letters=True) for passage in passages)
    words = bm25s.tokenize(
        texts, token_pattern=RECIPE["words"], stopwords=[], stemmer=Stemmer(RECIPE["stemmer"]), show_progress=False
    )
    if not words.vocab:
        raise UserError(f"{corpus if isinstance(corpus, Path) else 'the corpus'} holds no passage with words in it")
    index = bm25s.BM25(method=RECIPE["method"], k1=RECIPE["k1"], b=RECIPE["b"])
    index.index(words, show_progress=False)
    columns = [pa.array([getattr(p, name) for p in passages], pa.large_string()) for name in PASSAGE_SCHEMA.names]
    with atomic_path(folder) as temporary:
        index.save(temporary, show_progress=False)
        with pa.OSFile(str(temporary / "passages.arrow"), "wb") as sink, pa.ipc.new_file(sink, PASSAGE_SCHEMA) as file:
            file.write_table(pa.table(columns, schema=PASSAGE_SCHEMA))


def _corpus_hash(corpus: Path | Sequence[Passage]) -> str:
    if isinstance(corpus, Path) and corpus.is_file():
        return content_hash(corpus)
    digest = hashlib.sha256()
    for passage in load_corpus(corpus) if isinstance(corpus, Path) else corpus:
        digest.update(json.dumps([passage.title, passage.text]).encode())
    return digest.hexdigest()
