"""Mathematical problems: files of any form, and gold answers that prove the environment."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from bench.math_gold import corrupt, judge
from components.environments.math.problems import GENERATORS, generate_reasoning, load_math
from components.errors import UserError

REAL = os.environ.get("TRACE_REAL_DATA")
needs_real = pytest.mark.skipif(not REAL, reason="TRACE_REAL_DATA names no folder")


def write(folder: Path, *rows: object, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"question": "q", "answer": "so <<9*2=18>>18.\n#### 1,018"}, "1018"),
        ({"question": "q", "answer": "\\frac{1}{2}"}, "\\frac{1}{2}"),
        ({"problem": "q", "answer": 27.0}, "27"),
        ({"problem": "q", "answer": 0.5}, "0.5"),
        ({"problem": "q", "answer": 70, "solution": "So \\boxed{71}"}, "70"),
        ({"problem": "q", "solution": "Thus \\boxed{1}. Now $\\boxed{\\frac{3}{4}}$."}, "\\frac{3}{4}"),
        ({"problem": "q", "answer": None, "solution": "\\boxed{5}"}, "5"),
        ({"question": "q", "final_answer": ["$2$"], "answer_type": "Numerical"}, "2"),
        ({"question": "q", "final_answer": ["2", "-3"]}, "2, -3"),
        ({"question": "q", "final_answer": ["$x=1$ and $y=2$"]}, "$x=1$ and $y=2$"),
        ({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
          "reward_model": {"ground_truth": "7", "style": "rule"}}, "7"),
        ({"query": " q ", "expected_answer": " 3 "}, "3"),
    ],
)  # fmt: skip
def test_every_usual_form_is_read(tmp_path, row, answer):
    (prompt,) = load_math(write(tmp_path, row))
    assert (prompt.question, prompt.answer) == ("q", answer)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "1"}, "no field 'problem' or 'question'"),
        ({"question": "q"}, "no field 'final_answer' or 'answer'"),
        ({"question": "", "answer": "1"}, "field 'question' is empty"),
        ({"question": 5, "answer": "1"}, "no question in '5'"),
        ({"prompt": [{"role": "system", "content": "s"}], "answer": "1"}, "no question in \"[{'role': 'system'"),
        ({"question": "q", "answer": ""}, "field 'answer' is empty"),
        ({"question": "q", "answer": []}, "expected an answer, found '[]'"),
        ({"question": "q", "answer": ["1", None]}, "expected an answer, found"),
        ({"question": "q", "answer": True}, "field 'answer' should be object, found bool True"),
        ({"question": "q", "answer": {"x": 1}}, "no field 'ground_truth'; it has x"),
        ({"question": "q", "answer": "#### "}, "expected an answer, found '#### '"),
        ({"question": "q", "solution": "no box"}, "no answer, and no \\boxed{} in 'no box'"),
        (["q", "1"], "expected an object"),
    ],
)
def test_a_bad_row_is_told_with_file_row_and_field(tmp_path, row, says):
    path = write(tmp_path, {"question": "fine", "answer": "1"}, row)
    with pytest.raises(UserError) as error:
        load_math(path)
    assert str(error.value).startswith(f"{path}, row 1: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_that_repeat_are_left_out_and_counted(tmp_path, caplog):
    path = write(tmp_path, *[{"question": f"q{i % 2}", "answer": "1"} for i in range(5)])
    with caplog.at_level(logging.WARNING, "trace"):
        prompts = load_math(path)
    assert [prompt.question for prompt in prompts] == ["q0", "q1"]
    assert "3 of 5 rows left out" in caplog.text


def test_a_question_with_two_answers_is_left_out(tmp_path, caplog):
    path = write(tmp_path, *[{"question": q, "answer": a} for q, a in [("p", 1), ("q", 1), ("p", 2)]])
    with caplog.at_level(logging.WARNING, "trace"):
        assert [prompt.question for prompt in load_math(path)] == ["q"]
    assert "2 of 3 rows left out" in caplog.text


def test_ids_go_by_content(tmp_path):
    one = load_math(write(tmp_path, {"question": "q", "answer": "1"}, {"question": "r", "answer": "1"}))
    other = load_math(write(tmp_path, {"problem": "r", "answer": 1.0}, {"problem": "q", "answer": 1}, name="b.jsonl"))
    assert sorted(p.prompt_id for p in one) == sorted(p.prompt_id for p in other)


def test_other_kinds_of_files_are_read_too(tmp_path):
    (tmp_path / "rows.csv").write_text('problem,answer\n"1, 2?",3\n')
    (tmp_path / "rows.json").write_text(json.dumps([{"problem": "q", "answer": "3"}]))
    assert [load_math(tmp_path / f"rows.{kind}")[0].answer for kind in ("csv", "json")] == ["3", "3"]


def test_generated_problems_depend_on_the_seed_alone():
    pytest.importorskip("reasoning_gym")
    prompts = generate_reasoning(3, 100)
    assert prompts == generate_reasoning(3, 100)
    assert prompts[:50] == generate_reasoning(3, 50)
    assert not {p.prompt_id for p in prompts} & {p.prompt_id for p in generate_reasoning(4, 100)}
    assert len({p.prompt_id for p in prompts}) == 100
    assert {p.metadata["generator"] for p in prompts} == set(GENERATORS)


def test_too_few_different_problems_are_told():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(UserError, match="different problems of 3000"):
        generate_reasoning(0, 3000, ("coin_flip",))


def test_gold_scores_1_and_corrupted_gold_0_on_generated_problems():
    pytest.importorskip("reasoning_gym")
    pytest.importorskip("math_verify")
    assert not any(judge(generate_reasoning(5, 100)).values())


@needs_real
@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("amc23", 40), ("math500", 500), ("gsm8k_test", 1319)])
def test_gold_scores_1_and_corrupted_gold_0_on_real_files(name, rows):
    pytest.importorskip("math_verify")
    prompts = load_math(Path(str(REAL)) / "math" / f"{name}.jsonl")
    assert len(prompts) == len({p.prompt_id for p in prompts}) == rows
    assert not any(judge(prompts[:: 1 + rows // 60]).values())  # a sample; bench/math_gold.py takes all


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [("18", "19"), ("19", "10"), ("x^2", "x^3"), ("\\text{east}", "\\text{wrong}"), ("\\text{(C)}", "\\text{(wrong)}"),
     ("15\\mbox{ cm}^2", "16\\mbox{ cm}^2"), ("\\cot x", "\\cot x + 1")],
)  # fmt: skip
def test_a_corrupted_answer_is_another(answer, wrong):
    assert corrupt(answer) == wrong
