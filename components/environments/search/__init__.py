"""Questions answered by searching a corpus.

A search that fails raises, so that the rollout has a status and no reward.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from components.environments.base import Chat, Prompt
from components.environments.files import FilesEnvironment, FilesParams, field, read_rows
from components.environments.search.match import reward
from components.environments.search.questions import load_qa
from components.environments.search.retrieval import QUERY_CHARACTERS, Bm25, Passage, Retriever
from components.environments.search.retrieval_http import HttpRetriever, Recorded
from components.environments.tools import ToolEnvironment, ToolParams, clean, printable
from components.errors import UserError
from components.params.base import NOT_DATA, PositiveInt
from components.secrets import without_credentials

PASSAGE_CHARACTERS = 1500  # at which a passage is cut in an observation
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_MENTIONS = ("and", "...", "…")  # between tags that are spoken of rather than used


class SearchParams(ToolParams, FilesParams):
    """Questions of data files, answered by searching."""

    corpus: Annotated[str | None, NOT_DATA] = Field(None, description="Corpus file that is searched.")
    retriever: Annotated[str | None, NOT_DATA] = Field(None, description="URL of a search server, instead of a corpus.")
    record: Annotated[str | None, NOT_DATA] = Field(
        None, description="File that keeps a search server's answers for later runs."
    )
    top_k: Annotated[PositiveInt, NOT_DATA] = Field(3, description="Passages that a search returns.")
    examples: Annotated[str | None, NOT_DATA] = Field(
        None, description="Worked turns (rows of role and content) that are shown before a question."
    )
    match: Annotated[Literal["careful", "official"], NOT_DATA] = Field(
        "careful", description="When answers are the same text: `official` as SQuAD's evaluation, `careful` with signs."
    )
    graded: Annotated[bool, NOT_DATA] = Field(
        False, description="Reward F1 of at least 0.3 as well; success stays above 0.5."
    )


class Search(ToolEnvironment, FilesEnvironment):
    """For real models: questions answered by searching a corpus, or a search server.

    Args:
        retriever: Who finds passages; by default the corpus or the server that the parameters name.
    """

    name = "search"
    Params = SearchParams
    tool = ("search", "Finds the passages of an encyclopedia that fit a query best.")
    argument = ("query", "What to look for.")
    most_calls = 4
    rules = (
        "Answer the question. Search for what you need, one fact at a time, and reason about what you found before you "
        "search again. When you know the answer, give it alone, as short as possible, "
    )
    ending = "between <answer> and </answer>, without another search."
    react_ending = "after 'Final Answer:'."

    def __init__(
        self, params: SearchParams | None = None, cache: Path = Path("data/cache"), retriever: Retriever | None = None
    ) -> None:
        super().__init__(params, cache)
        self._given = retriever

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        _check_source(params.environment)
        corpus = params.environment.corpus
        if corpus is not None and not Path(corpus).is_file():
            raise UserError(f"environment.corpus={corpus!r}: no such file")

    @cached_property
    def retriever(self) -> Retriever:
        """Who finds passages, made when it is first asked."""
        mine = self.params
        if self._given is not None:
            return self._given
        _check_source(mine)
        return _retriever(mine.corpus, mine.retriever, mine.record, mine.top_k, self.cache)

    @cached_property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """(role, content) of worked turns, shown before the question to models that do not know the form."""
        return load_examples(self.params.examples) if self.params.examples else ()

    def load(self, file: str) -> list[Prompt]:
        return load_qa(file)

    def score(self, prompt: Prompt, answer: str | None) -> float:
        return reward(prompt, answer, self.params.graded, self.params.match)

    def solve(self, prompt: Prompt) -> list[str]:
        return [f"Final Answer: {prompt.answer}" if self.params.react else f"<answer>{prompt.answer}</answer>"]

    def chat(self, prompt: Prompt) -> Chat:
        chat = super().chat(prompt)
        system, question = chat.messages
        return Chat((system, *self.examples, question), chat.tools)

    def run(self, texts: list[str]) -> str:
        queries = [printable(text[:QUERY_CHARACTERS]).strip() for text in texts]
        return "\n\n".join(_show(found) for found in self.retriever.retrieve(queries))

    def answer_in(self, text: str) -> str:
        return final_answer(text)


def _check_source(mine: SearchParams) -> None:
    if (mine.corpus is None) == (mine.retriever is None):
        raise UserError("search needs environment.corpus (a file) or environment.retriever (a server's URL), not both")


@lru_cache(maxsize=2)
def _retriever(corpus: str | None, url: str | None, record: str | None, top_k: int, cache: Path) -> Retriever:
    found: Retriever = Bm25(corpus, cache / "index", top_k) if corpus else HttpRetriever(str(url), top_k)
    settings = {"source": corpus or without_credentials(str(url)), "top_k": top_k}
    return Recorded(Path(record), settings, found) if record else found


def load_examples(path: str) -> tuple[tuple[str, str], ...]:
    """Worked turns from a data file whose rows have `role` and `content`.

    Raises:
        UserError: if the file cannot be read, or a row has no role or no content.
    """
    rows = enumerate(read_rows(path))
    return tuple((field(row, ("role",), path, n), field(row, ("content",), path, n)) for n, row in rows)


def final_answer(text: str) -> str:
    """The last pair of <answer> tags with something between them, wherever the tags are spoken of later.

    Without such a pair: what follows an open tag, or the whole text, without "Final Answer:" before it.
    """
    complete = [found for found in map(str.strip, _ANSWER.findall(text)) if found]
    used = [found for found in complete if found not in _MENTIONS] or complete
    found = used[-1] if used else text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    return found.removeprefix("Final Answer:").strip()


def _show(found: list[Passage]) -> str:
    shown = [
        f"[{number}] {passage.title}\n{passage.text[:PASSAGE_CHARACTERS].strip()}"
        for number, passage in enumerate(found, start=1)
    ]
    return clean("\n".join(shown)) or "No passage fits this query."
