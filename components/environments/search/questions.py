"""Questions with short answers: HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, and files of the same kind.

One reader serves them all, since they differ in names only. The question stands in `question` (`Question`); the gold
answer in `answer` (`Answer`, `answers`, `golden_answers`), as a text or a list of accepted ones; further ones in
`answer_aliases`. Rows marked as not answerable (MuSiQue-Full) are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.environments.base import Prompt
from components.environments.files import field, read_rows
from components.errors import UserError
from components.storage import value_hash

QUESTION = ("question", "Question", "query")
ANSWER = ("answer", "Answer", "golden_answers", "answers")
ALIASES = ("answer_aliases", "aliases")


def load_qa(path: Path | str) -> list[Prompt]:
    """Reads questions from any file of `read_rows`; one that occurs again with the same answers counts once.

    Args:
        path: The file, or ``hub:owner/name:split``.

    Returns:
        Prompts with ids by the content of question and answers. The metadata hold ``aliases``, the accepted answers
        besides the gold one, where there are any.

    Raises:
        UserError: if the file is missing or damaged, or a row lacks a field or has one of a wrong type.
    """
    prompts: dict[str, Prompt] = {}
    for number, row in enumerate(read_rows(path)):
        if row.get("answerable") is not False:
            gold, *more = _answers(row, path, number)
            prompt = make_prompt(field(row, QUESTION, path, number).strip(), gold, more)
            prompts.setdefault(prompt.prompt_id, prompt)
    return list(prompts.values())


def make_prompt(question: str, answer: str, aliases: list[str]) -> Prompt:
    """A prompt whose id is the hash of question and answers."""
    content = value_hash({"question": question, "answers": [answer, *aliases]})[:16]
    return Prompt(content, question, answer, {"aliases": aliases} if aliases else {})


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
