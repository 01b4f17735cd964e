"""Arithmetic with a calculator: only the right operations lead to the answer."""

from __future__ import annotations

import pytest

from components.environments.calculator import MODULUS, NUMBERS, OPERATIONS, Calculator, compute, make_prompt

PROMPT = make_prompt("12", [("plus", "5"), ("times", "7"), ("minus", "20")])


def test_a_question_is_read_from_left_to_right():
    assert (PROMPT.question, PROMPT.answer) == ("12 plus 5 times 7 minus 20 ?", str((17 * 7 - 20) % 97))


@pytest.mark.parametrize("wrong", sorted({name for name, _ in OPERATIONS.values()} - {"add"}))
def test_a_wrong_operation_leads_elsewhere(wrong):
    value = compute(wrong, "12", "5")
    for operation, operand in (("mul", "7"), ("sub", "20")):
        value = compute(operation, value, operand)
    assert value != PROMPT.answer


def test_every_operator_names_an_operation_of_its_own():
    table = {
        name: tuple(compute(name, str(a), str(b)) for a in range(8) for b in range(8))
        for name, _ in OPERATIONS.values()
    }
    assert len(OPERATIONS) == len(table) == len(set(table.values())) == 24
    assert set(NUMBERS) == {compute("add", "0", number) for number in NUMBERS}
    assert compute("sub", "3", "5") == str(MODULUS - 2)


def test_ids_go_by_content():
    assert make_prompt("1", [("plus", "2")]).prompt_id != make_prompt("1", [("plus", "3")]).prompt_id


@pytest.mark.parametrize("call", ["nothing 1 2", "add 1 97", "add -1 2", "add 01 2", "add ١ 2"])
def test_unknown_operation_or_number_shows_nothing(call):
    environment = Calculator()
    assert environment.step(environment.reset(PROMPT), f"calc {call}").observation == "nothing"
