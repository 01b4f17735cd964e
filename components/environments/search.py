"""Questions answered by searching a corpus, for real chat models.

A turn either calls `search` or answers. What can be read is answered: a call with a wrong name or wrong arguments gets
an error as its observation. What cannot be read (a cut or malformed call) ends the rollout as `malformed_action`; it is
never run with other arguments. A search that fails raises, so that the rollout has a status and no reward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.datasets.files import field, read_rows
from components.environments.base import Chat, Prompt, Transition
from components.environments.parsing import Call, MalformedCall, parse_turn
from components.environments.retrieval import QUERY_CHARACTERS, Bm25, Passage, Retriever
from components.environments.retrieval_http import HttpRetriever, Recorded
from components.errors import UserError
from components.secrets import without_credentials
from components.tree.schema import StopReason

if TYPE_CHECKING:
    from components.config import EnvironmentParams

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


@dataclass(frozen=True)
class State:
    """Where a rollout stands: what it found lies in its history, and a search changes nothing."""

    turn: int = 0


@dataclass(frozen=True)
class Search:
    """The environment.

    Attributes:
        retriever: Who finds passages.
        max_turns: Turns after which a rollout is stopped; the last one can only answer.
        react: Plain ReAct text, for chat templates without tools, instead of the template's own tool calls.
        passage_characters: Length at which a passage is cut in an observation.
        examples: (role, content) of worked turns, shown before the question to models that do not know the form.
    """

    retriever: Retriever
    max_turns: int = 5
    react: bool = False
    passage_characters: int = 1500
    examples: tuple[tuple[str, str], ...] = ()

    def chat(self, prompt: Prompt) -> Chat:
        system = REACT if self.react else HERMES
        return Chat((("system", system), *self.examples, ("user", prompt.question)), () if self.react else (TOOL,))

    def reset(self, prompt: Prompt) -> State:
        return State()

    def step(self, state: State, action: str) -> Transition:
        after = replace(state, turn=state.turn + 1)
        try:
            turn = parse_turn(action, {"search": "query"} if self.react else None)
        except MalformedCall:
            return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)
        if turn.calls:
            if after.turn >= self.max_turns:
                return Transition(after, stop_reason=StopReason.MAX_TURNS)
            observation = self._observe(turn.calls)
            if self.react:
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


def make_retriever(settings: EnvironmentParams, cache: Path) -> Retriever:
    """The corpus or server that `environment.corpus` or `environment.retriever` names, made once per process.

    Raises:
        UserError: if neither or both are given, or the corpus cannot be read.
    """
    if (settings.corpus is None) == (settings.retriever is None):
        raise UserError("search needs a corpus file (environment.corpus) or a server's URL (environment.retriever)")
    return _retriever(settings.corpus, settings.retriever, settings.record, settings.top_k, cache)


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
