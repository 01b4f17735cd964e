"""Mathematical problems from data files of any of the usual forms, and from the generators of reasoning-gym.

The forms that are known: GSM8K (`question`; `answer` that ends in ``#### n``), MATH-500, AIME 2024 and 2025, AMC 2023
and DeepScaleR (`problem` or `question`; `answer`), Minerva (`problem`; `solution` with the answer in its last box),
OlympiadBench (`question`; `final_answer`, a list), and chat rows (`prompt`, a list of messages;
`reward_model.ground_truth`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from typing import Any

from components.environments.base import Prompt, content_id
from components.environments.files import field, read_rows
from components.environments.math.boxed import last_boxed
from components.errors import MissingExtraError, UserError

logger = logging.getLogger("trace")

QUESTIONS = ("problem", "question", "prompt", "query", "input")
ANSWERS = ("final_answer", "answer", "expected_answer", "ground_truth", "gold", "target", "reward_model")
SOLUTIONS = ("solution", "response", "output")
_THOUSANDS = re.compile(r"\$?(-?\d{1,3}(?:,\d{3})+(?:\.\d+)?)")

# Generators of reasoning-gym whose gold answers are single numbers or polynomials that `MathVerify` judges as their own
# scorers do. Where the form of the answer is the task (simplify, factorise), it would be too kind.
GENERATORS = (
    "basic_arithmetic", "chain_sum", "decimal_chain_sum", "gcd", "gsm_symbolic", "lcm", "leg_counting",
    "polynomial_multiplication", "products", "simple_equations",
)  # fmt: skip


def load_math(path: Path | str) -> list[Prompt]:
    """Problems of a data file (see `read_rows` for the kinds of files), in the file's order.

    Rows that repeat another, and all those of a question that comes with two answers, are left out; their number is
    logged.

    Raises:
        UserError: if the file cannot be read, or a row has no question or no answer.
    """
    answers: dict[str, set[str]] = {}
    rows = read_rows(path)
    for number, row in enumerate(rows):
        answers.setdefault(_question(row, path, number), set()).add(_answer(row, path, number))
    prompts = [_prompt(question, given.pop()) for question, given in answers.items() if len(given) == 1]
    if left_out := len(rows) - len(prompts):
        logger.warning("%s: %d of %d rows left out: they repeat or contradict others", path, left_out, len(rows))
    return prompts


def generate_reasoning(seed: int, count: int, generators: tuple[str, ...] = GENERATORS) -> list[Prompt]:
    """Problems of reasoning-gym, taking turns among its generators; a function of the arguments alone.

    Args:
        seed: Seed of every generator.
        count: Number of problems; all differ.
        generators: Names of generators whose answers `MathVerify` can judge.

    Raises:
        MissingExtraError: if the package reasoning-gym is not installed.
        UserError: if the generators repeat themselves so much that `count` problems cannot be had.
    """
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one of its packages is written in a deprecated way
            from reasoning_gym import create_dataset  # type: ignore
    except ImportError:
        raise MissingExtraError("problems from reasoning-gym", "math") from None
    size = 4 * count // len(generators) + 64
    # Their item i is drawn with seed + i, so that neighbouring seeds would give the same items.
    spread = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4], "big")
    streams = [iter(create_dataset(name, seed=spread, size=size)) for name in generators]
    prompts: dict[str, Prompt] = {}
    for drawn in range(size * len(streams)):
        if len(prompts) == count:
            break
        name = generators[drawn % len(streams)]
        item = next(streams[drawn % len(streams)])
        prompt = _prompt(str(item["question"]), str(item["answer"]), {"generator": name})
        prompts.setdefault(prompt.prompt_id, prompt)
    if len(prompts) < count:
        raise UserError(f"reasoning-gym gave {len(prompts)} different problems of {count}; choose more generators")
    return list(prompts.values())


def _prompt(question: str, answer: str, metadata: dict[str, Any] | None = None) -> Prompt:
    return Prompt(content_id(question, answer), question, answer, metadata or {})


def _question(row: dict[str, Any], path: Path | str, number: int) -> str:
    value = field(row, QUESTIONS, path, number, object)
    if isinstance(value, list):  # a conversation: the last that the user says
        said = [m.get("content") for m in value if isinstance(m, dict) and m.get("role") == "user"]
        value = said[-1] if said else None
    if not isinstance(value, str) or not value.strip():
        raise UserError(
            f"{path}, row {number}: no question in {str(field(row, QUESTIONS, path, number, object))[:80]!r}"
        )
    return value.strip()


def _answer(row: dict[str, Any], path: Path | str, number: int) -> str:
    if all(row.get(name) is None for name in ANSWERS):
        solution = field(row, (*ANSWERS, *SOLUTIONS), path, number)
        if answer := last_boxed(solution):
            return answer
        raise UserError(f"{path}, row {number}: no answer, and no \\boxed{{}} in {solution[:80]!r}")
    value = field(row, ANSWERS, path, number, object)
    if isinstance(value, dict):
        value = field(value, ("ground_truth",), path, number, object)
    parts = value if isinstance(value, list) else [value]
    texts = [_text(part) for part in parts]
    if not texts or not all(texts):
        raise UserError(f"{path}, row {number}: expected an answer, found {str(value)[:80]!r}")
    return ", ".join(text for text in texts if text)


def _text(value: Any) -> str | None:
    """A gold answer as text; None where the value is none. Whole floats lose their point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:
        return None
    text = str(value).strip()
    if "####" in text:  # a solution in the form of GSM8K
        text = text.rpartition("####")[2].strip()
        if number := _THOUSANDS.fullmatch(text):
            text = number[1].replace(",", "")
    text = last_boxed(text) or text
    return (text.strip("$").strip() if "$" not in text.strip("$") else text) or None
