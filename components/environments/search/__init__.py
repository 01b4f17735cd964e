"""Questions answered by searching a corpus, for real chat models.

A turn either calls `search` or answers. What can be read is answered: a call with a wrong name or wrong arguments gets
an error as its observation. What cannot be read (a cut or malformed call) ends the rollout as `malformed_action`; it is
never run with other arguments. A search that fails raises, so that the rollout has a status and no reward.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components.environments.base import Chat, Environment, Prompt, Splits, State, Transition
from components.environments.files import FilesParams, field, prompts_of_files, read_rows
from components.environments.parsing import Call, MalformedCall, parse_turn
from components.environments.search.retrieval import QUERY_CHARACTERS, Bm25, Passage, Retriever
from components.environments.search.retrieval_http import HttpRetriever, Recorded
from components.errors import UserError
from components.params.base import NOT_DATA, PositiveInt
from components.secrets import without_credentials
from components.tree.schema import StopReason

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds the passages of an encyclopedia that fit a query best.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}
TASK = (
    "Answer the question. Search for what you need, one fact at a time, and reason about what you found before you "
    "search again. When you know the answer, give it alone, as short as possible, "
)
HERMES = TASK + "between <answer> and </answer>, without another search."
REACT = (
    "You have one tool, search(query): it finds the passages of an encyclopedia that fit a query best.\n"
    + TASK
    + "after 'Final Answer:'. Write each turn in one of these two forms, and nothing after it:\n\n"
    "Thought: what you know and what is missing\nAction: search\nAction Input: the query\n\n"
    "Thought: why you know the answer\nFinal Answer: the answer"
)
MAX_CALLS = 4  # searches in one turn
_MARKUP = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|answer)\b)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class SearchParams(FilesParams):
    """Questions of data files, answered by searching."""

    corpus: Annotated[str | None, NOT_DATA] = Field(None, description="Corpus file that is searched.")
    retriever: Annotated[str | None, NOT_DATA] = Field(None, description="URL of a search server, instead of a corpus.")
    record: Annotated[str | None, NOT_DATA] = Field(
        None, description="File that keeps a search server's answers for later runs."
    )
    top_k: Annotated[PositiveInt, NOT_DATA] = Field(3, description="Passages that a search returns.")
    react: Annotated[bool, NOT_DATA] = Field(False, description="Plain ReAct text, for chat templates without tools.")
    examples: Annotated[str | None, NOT_DATA] = Field(
        None, description="Worked turns (rows of role and content) that are shown before a question."
    )
    graded: Annotated[bool, NOT_DATA] = Field(
        False, description="Reward F1 of at least 0.3 as well; success stays above 0.5."
    )


class Search(Environment):
    """For real models: questions answered by searching a corpus, or a search server.

    Args:
        retriever: Who finds passages; by default the corpus or the server that the parameters name.
    """

    name = "search"
    Params = SearchParams
    licence = "that of the files"
    passage_characters = 1500  # at which a passage is cut in an observation

    def __init__(
        self, params: SearchParams | None = None, cache: Path = Path("data/cache"), retriever: Retriever | None = None
    ) -> None:
        super().__init__(params, cache)
        self._given = retriever

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        mine = params.environment
        if (mine.corpus is None) == (mine.retriever is None):
            raise UserError(
                "search needs environment.corpus (a file) or environment.retriever (a server's URL), not both"
            )
        if mine.corpus is not None and not Path(mine.corpus).is_file():
            raise UserError(f"environment.corpus={mine.corpus!r}: no such file")

    @cached_property
    def retriever(self) -> Retriever:
        """Who finds passages, made when it is first asked."""
        mine = self.params
        if self._given is not None:
            return self._given
        if (mine.corpus is None) == (mine.retriever is None):
            raise UserError(
                "search needs environment.corpus (a file) or environment.retriever (a server's URL), not both"
            )
        return _retriever(mine.corpus, mine.retriever, mine.record, mine.top_k, self.cache)

    @cached_property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """(role, content) of worked turns, shown before the question to models that do not know the form."""
        return load_examples(self.params.examples) if self.params.examples else ()

    def prompts(self) -> Splits:
        from components.environments.search.questions import load_qa

        return prompts_of_files(self.params, partial(load_qa, duplicates="drop"))

    def source(self) -> str:
        return ", ".join(file for files in self.params.files.values() for file in files)

    def score(self, prompt: Prompt, answer: str | None) -> float:
        from components.environments.search.match import reward

        return reward(prompt, answer, self.params.graded)

    def solve(self, prompt: Prompt) -> list[str]:
        return [f"Final Answer: {prompt.answer}" if self.params.react else f"<answer>{prompt.answer}</answer>"]

    def chat(self, prompt: Prompt) -> Chat:
        system = REACT if self.params.react else HERMES
        return Chat(
            (("system", system), *self.examples, ("user", prompt.question)), () if self.params.react else (TOOL,)
        )

    def step(self, state: State, action: str) -> Transition:
        after = state.next()
        try:
            turn = parse_turn(action, {"search": "query"} if self.params.react else None)
        except MalformedCall:
            return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
        if turn.calls:
            if after.turn >= self.params.max_turns:
                return Transition(after, stop_reason=StopReason.MAX_TURNS)
            observation = self._observe(turn.calls)
            if self.params.react:
                return Transition(after, f"Observation: {observation}", role="user")
            return Transition(after, observation)
        answer = final_answer(turn.text)
        if not answer:
            return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
        return Transition(after, stop_reason=StopReason.ANSWERED, answer=answer)

    def _observe(self, calls: tuple[Call, ...]) -> str:
        if len(calls) > MAX_CALLS:
            return f"Error: {len(calls)} calls in one turn; at most {MAX_CALLS} are run."
        for call in calls:
            if fault := _fault(call):
                return _clean(f"Error: {fault}")
        queries = [_query(call) for call in calls]
        return "\n\n".join(self._show(found) for found in self.retriever.retrieve(queries))

    def _show(self, found: list[Passage]) -> str:
        shown = [
            f"[{number}] {passage.title}\n{passage.text[: self.passage_characters].strip()}"
            for number, passage in enumerate(found, start=1)
        ]
        return _clean("\n".join(shown)) or "No passage fits this query."


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
    """The answer in the last <answer> tags, else the whole text, without "Final Answer:" before it."""
    text = text.rpartition("<answer>")[2].partition("</answer>")[0]
    return text.strip().removeprefix("Final Answer:").strip()


def _fault(call: Call) -> str | None:
    if call.name != "search":
        return f"there is no tool {call.name[:50]!r}; the only tool is 'search'."
    if set(call.arguments) != {"query"} or not isinstance(call.arguments["query"], str):
        return "search takes one argument, 'query', a text."
    return None if _query(call) else "the query is empty."


def _query(call: Call) -> str:
    return _CONTROL.sub(" ", call.arguments["query"][:QUERY_CHARACTERS]).strip()


def _clean(text: str) -> str:
    """Without control characters, and without what a chat template takes for markup: passages are no one's turn."""
    return _MARKUP.sub("< ", _CONTROL.sub(" ", text))
