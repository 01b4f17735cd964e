"""Questions with short answers: HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, and files of the same kind.

One reader serves them all, since they differ in names only. The question stands in `question` (`Question`); the gold
answer in `answer` (`Answer`, `answers`, `golden_answers`), as a text or a list of accepted ones; further ones in
`answer_aliases`. Passages stand in `context` (HotpotQA, 2WikiMultihopQA: titles with sentences, as pairs, as columns,
or as JSON text) or in `paragraphs` (MuSiQue). Rows marked as not answerable (MuSiQue-Full) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from components.environments.base import Prompt
from components.environments.files import field, read_rows
from components.environments.search.retrieval import Passage, passage_of
from components.errors import UserError
from components.storage import value_hash

QUESTION = ("question", "Question", "query")
ANSWER = ("answer", "Answer", "golden_answers", "answers")
ALIASES = ("answer_aliases", "aliases")


def load_qa(path: Path | str, duplicates: Literal["error", "drop"] = "error") -> list[Prompt]:
    """Reads questions from any file of `read_rows`.

    Args:
        path: The file, or ``hub:owner/name:split``.
        duplicates: What to do with a question that occurs again with the same answers: refuse the file, or keep the
            first.

    Returns:
        Prompts with ids by the content of question and answers. The metadata hold ``aliases``, the accepted answers
        besides the gold one, where there are any.

    Raises:
        UserError: if the file is missing or damaged, a row lacks a field or has one of a wrong type, or a question
            occurs twice.
    """
    prompts: dict[str, Prompt] = {}
    rows: dict[str, int] = {}
    for number, row in _answerable(path):
        answers = _answers(row, path, number)
        prompt = make_prompt(field(row, QUESTION, path, number).strip(), answers[0], answers[1:])
        if prompt.prompt_id in prompts:
            if duplicates == "error":
                first = rows[prompt.prompt_id]
                raise UserError(f"{path}, row {number}: the same as row {first}: {prompt.question[:80]!r}")
            continue
        prompts[prompt.prompt_id], rows[prompt.prompt_id] = prompt, number
    return list(prompts.values())


def make_prompt(question: str, answer: str, aliases: list[str]) -> Prompt:
    """A prompt whose id is the hash of question and answers."""
    content = value_hash({"question": question, "answers": [answer, *aliases]})[:16]
    return Prompt(content, question, answer, {"aliases": aliases} if aliases else {})


def corpus_of(path: Path | str) -> list[Passage]:
    """The distinct passages that stand beside the questions, in order.

    Raises:
        UserError: if the file is missing or damaged, or a row has no passages.
    """
    found = (passage for number, row in _answerable(path) for passage, _ in _passages(row, path, number))
    return list(dict.fromkeys(found))


def evidence_of(path: Path | str) -> list[list[Passage]]:
    """For each question the passages that its answer rests on, as far as the file says so: what a search should find.

    Raises:
        UserError: if the file is missing or damaged, or a row has no passages.
    """
    return [[p for p, supports in _passages(row, path, number) if supports] for number, row in _answerable(path)]


def _answerable(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((number, row) for number, row in enumerate(read_rows(path)) if row.get("answerable") is not False)


def _answers(row: dict[str, Any], path: Path | str, number: int) -> list[str]:
    """The gold answer and its aliases, distinct, without blank ones."""
    gold = field(row, ANSWER, path, number, object)
    more: Any = next((row[name] for name in ALIASES if row.get(name) is not None), [])
    answers: list[str] = []
    for value in [*_as_list(gold), *_as_list(more)]:
        if not isinstance(value, str):
            found = f"{type(value).__name__} {str(value)[:40]}"
            raise UserError(f"{path}, row {number}: an answer should be a text, found {found}")
        if value.strip() and value.strip() not in answers:
            answers.append(value.strip())
    if not answers:
        raise UserError(f"{path}, row {number}: the list of answers is empty")
    return answers


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _passages(row: dict[str, Any], path: Path | str, number: int) -> list[tuple[Passage, bool]]:
    """Passages of a row, and whether the answer rests on them."""
    if "paragraphs" in row:
        rows = _objects(field(row, ("paragraphs",), path, number, list), path, number)
        return [(passage_of(each, path, number), each.get("is_supporting") is True) for each in rows]
    facts = _pairs(row.get("supporting_facts") or [], "sent_id", path, number)
    titles = {title for title, _ in facts}
    context = _pairs(field(row, ("context",), path, number, object), "sentences", path, number)
    return [(passage_of({"title": t, "text": s}, path, number), t in titles) for t, s in context]


def _pairs(value: Any, column: str, path: Path | str, number: int) -> list[tuple[str, Any]]:
    """(title, other) pairs, from pairs, from columns, or from either as JSON text."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
        if isinstance(value, dict):
            value = zip(value["title"], value[column], strict=True)
        return [(str(title), other) for title, other in value]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}, row {number}: expected titles with {column}: {error}") from None


def _objects(values: list[Any], path: Path | str, number: int) -> list[dict[str, Any]]:
    for value in values:
        if not isinstance(value, dict):
            raise UserError(f"{path}, row {number}: a paragraph should be an object, found {type(value).__name__}")
    return values
