"""Questions with short answers: every shape in one reader, gold proves it on all rows of the real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from components.environments.files import read_rows
from components.environments.search import Search, SearchParams
from components.environments.search.match import MATCH
from components.environments.search.questions import load_qa
from components.environments.search.retrieval import Bm25
from components.errors import UserError

REAL = Path(os.environ.get("TRACE_REAL_DATA", "")) / "qa"
needs_real_data = pytest.mark.skipif("TRACE_REAL_DATA" not in os.environ, reason="TRACE_REAL_DATA is not set")
FILES = ["hotpotqa.jsonl", "2wiki.jsonl", "musique.jsonl", "hotpotqa_train.json", "musique_train.json"]


def write(tmp_path, rows, name: str = "qa.json"):
    (tmp_path / name).write_text(json.dumps(rows))
    return tmp_path / name


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Where?", "answer": "Geneva", "answer_aliases": ["Genève", "Geneva"], "id": "2hop__1"},
        {"question": " Where? ", "answer": ["Geneva", "Genève", " "]},
        {"Question": "Where?", "Answer": "Geneva", "aliases": "Genève"},
        {"id": "test_0", "question": "Where?", "golden_answers": ["Geneva", "Genève"]},
        {"question": "Where?", "answer": None, "answers": ["Geneva", "Genève"], "context": []},
    ],
)
def test_every_shape_gives_the_same_prompt(tmp_path, row):
    expected = load_qa(write(tmp_path, [{"question": "Where?", "answer": ["Geneva", "Genève"]}], "other.json"))
    assert load_qa(write(tmp_path, [row])) == expected
    assert expected[0].metadata == {"aliases": ["Genève"]}


def test_csv_as_bamboogle_has_it(tmp_path):
    (tmp_path / "b.csv").write_text("Question,Answer\nWho?,James Madison\n")
    (prompt,) = load_qa(tmp_path / "b.csv")
    assert (prompt.question, prompt.answer, prompt.metadata) == ("Who?", "James Madison", {})


def test_ids_are_by_content(tmp_path):
    rows = [{"question": f"q{n % 3}", "answer": f"a{n // 3}", "id": n} for n in range(9)]
    ids = [p.prompt_id for p in load_qa(write(tmp_path, rows))]
    assert len(set(ids)) == 9
    assert [p.prompt_id for p in load_qa(write(tmp_path, rows[::-1]))] == ids[::-1]


def test_a_question_that_occurs_again_counts_once(tmp_path):
    rows = [{"question": "q", "answer": "a"}, {"question": "r", "answer": "b"}, {"question": "q ", "answer": ["a"]}]
    assert [p.question for p in load_qa(write(tmp_path, rows))] == ["q", "r"]


def test_rows_that_cannot_be_answered_are_left_out(tmp_path):
    rows = [{"question": "q", "answer": "a", "answerable": False}, {"question": "r", "answer": "b", "answerable": True}]
    assert [p.question for p in load_qa(write(tmp_path, rows))] == ["r"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "a"}, r"row 1: no field 'question' or 'Question' or 'query'; it has answer"),
        ({"question": "", "answer": "a"}, r"row 1: field 'question' is empty"),
        ({"question": ["q"], "answer": "a"}, r"row 1: field 'question' should be str, found list"),
        ({"question": "q"}, r"row 1: no field 'answer'"),
        ({"question": "q", "answer": []}, r"row 1: the list of answers is empty"),
        ({"question": "q", "answer": ["", " "]}, r"row 1: the list of answers is empty"),
        ({"question": "q", "answer": 1984}, r"row 1: an answer should be a text, found int 1984"),
        ({"question": "q", "answer": True}, r"row 1: field 'answer' should be object, found bool True"),
        ({"question": "q", "answer": ["a", None]}, r"row 1: an answer should be a text, found NoneType None"),
        ({"question": "q", "answer": "a", "answer_aliases": [7]}, r"row 1: an answer should be a text, found int 7"),
        ({"question": "q", "answer": {"value": "a"}}, r"row 1: an answer should be a text, found dict"),
    ],
)
def test_unusable_row_names_file_row_and_field(tmp_path, row, message):
    with pytest.raises(UserError, match=message):
        load_qa(write(tmp_path, [{"question": "fine", "answer": "fine"}, row]))


@needs_real_data
@pytest.mark.parametrize("match", MATCH)
@pytest.mark.parametrize("name", FILES)
def test_gold_scores_1_and_a_corrupted_answer_0_on_all_rows(name, match):
    """Every accepted answer of every row, through the environment and both rewards."""
    prompts = load_qa(REAL / name)
    assert len(prompts) == (100 if "train" in name else 200)
    binary, graded = (Search(SearchParams(match=match, graded=graded)) for graded in (False, True))
    for prompt, other in zip(prompts, prompts[1:] + prompts[:1], strict=True):
        accepted = [prompt.answer, *prompt.metadata.get("aliases", [])]
        for gold in accepted:
            for form in ("{}", "<think>so</think>\n<answer>{}</answer>", "Final Answer: {}"):
                answer = binary.step(binary.reset(prompt), form.format(gold)).answer
                assert binary.score(prompt, answer) == graded.score(prompt, answer) == 1.0, (prompt.question, answer)
            swapped = {"yes": "no", "no": "yes"}.get(gold.lower())
            for wrong in (f"{gold} wrongly", f"not {gold}", gold[:-1] + "qz", swapped or "unknown", None):
                assert binary.score(prompt, wrong) == 0.0, (prompt.question, wrong)
            assert graded.score(prompt, swapped or "xyzzy") == 0.0
        if not {form for gold in accepted for form in MATCH[match](gold)} & set(MATCH[match](other.answer)):
            assert binary.score(prompt, other.answer) == 0.0


def evidence(row: dict) -> set[str]:
    """Titles of the passages that a row's answer rests on."""
    supporting = {p["title"] for p in row.get("paragraphs", []) if p["is_supporting"]}
    return supporting or {title for title, _ in row["supporting_facts"]}


@needs_real_data
@pytest.mark.parametrize(
    ("name", "at_3", "at_5", "at_10"), [("hotpotqa_train", 0.71, 0.80, 0.89), ("musique_train", 0.48, 0.51, 0.57)]
)
def test_search_finds_the_supporting_passages(tmp_path, name, at_3, at_5, at_10):
    """Share of supporting passages among the first k for the bare question; a second hop is often not named in it."""
    search, rows = Bm25(REAL / f"{name}_corpus.json", tmp_path, top_k=10), read_rows(REAL / f"{name}.json")
    found = search.retrieve([row["question"] for row in rows])
    for k, least in ((3, at_3), (5, at_5), (10, at_10)):
        shares = [
            np.mean([title in {passage.title for passage in passages[:k]} for title in evidence(row)])
            for passages, row in zip(found, rows, strict=True)
        ]
        assert np.mean(shares) >= least, (k, np.mean(shares))
