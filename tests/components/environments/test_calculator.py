"""Arithmetic with a calculator: gold proves it, and only the right operations lead there."""

from __future__ import annotations

import numpy as np
import pytest
from components.datasets.chains import draw_chains, zipf
from components.verifiers.exact_match import ExactMatch

from components.environments.calculator import (
    MODULUS,
    NUMBERS,
    OPERATIONS,
    OPERATORS,
    Calculator,
    compute,
    generate_prompts,
    make_prompt,
    solve,
    vocabulary,
    zipf_weights,
)
from components.environments.dataset import multihop
from components.environments.multihop import RELATIONS
from components.environments.verify import verify
from components.tree.schema import StopReason


def draw(count: int, seed: int = 0) -> list:
    stream = generate_prompts(np.random.default_rng(seed), {1: 1, 2: 1, 3: 1})
    return [next(stream) for _ in range(count)]


def final_answer(prompt, change: int | None = None) -> str | None:
    """The answer along the gold path, with the operator of one step taken for another."""
    environment = Calculator()
    state, value = environment.reset(prompt), prompt.metadata["start"]
    for step, (operator, operand) in enumerate(prompt.metadata["steps"]):
        used = OPERATORS[(OPERATORS.index(operator) + 1) % len(OPERATORS)] if step == change else operator
        transition = environment.step(state, f"<think> x </think> calc {OPERATIONS[used][0]} {value} {operand}")
        state, value = transition.state, transition.observation
    return environment.step(state, f"<think> done </think> answer {value}").answer


def test_gold_path_scores_1_and_a_wrong_operation_mostly_0():
    prompts = draw(300)
    assert all(verify(ExactMatch(), p, final_answer(p)).reward == 1.0 for p in prompts)
    assert np.mean([verify(ExactMatch(), p, final_answer(p, change=0)).reward for p in prompts]) < 0.05


def test_gold_turns_lead_where_solve_says():
    for prompt in draw(50):
        environment, turns = Calculator(), solve(prompt)
        state = environment.reset(prompt)
        for action, observation in turns:
            transition = environment.step(state, action)
            assert transition.observation == observation
            state = transition.state
        assert transition.answer == prompt.answer
        assert len(turns) == len(prompt.metadata["steps"]) + 1


def test_a_question_is_read_from_left_to_right():
    prompt = make_prompt("12", [("plus", "5"), ("times", "7"), ("minus", "20")])
    assert (prompt.question, prompt.answer) == ("12 plus 5 times 7 minus 20 ?", str((17 * 7 - 20) % 97))


def test_every_operator_names_an_operation_of_its_own():
    table = {
        name: tuple(compute(name, str(a), str(b)) for a in range(8) for b in range(8))
        for name, _ in OPERATIONS.values()
    }
    assert len(OPERATORS) == len(table) == len(set(table.values())) == 24
    assert set(NUMBERS) == {compute("add", "0", number) for number in NUMBERS}
    assert compute("sub", "3", "5") == str(MODULUS - 2)


def test_words_are_in_the_vocabulary_once_each():
    words = vocabulary()
    assert len(words) == len(set(words))
    used = {word for p in draw(300) for text in (p.question, *(t for t, _ in solve(p))) for word in text.split()}
    assert used <= set(words)


def test_ids_go_by_content_and_streams_by_seed():
    assert [p.prompt_id for p in draw(20)] == [p.prompt_id for p in draw(20)]
    assert len({p.prompt_id for p in draw(500)}) > 450
    assert make_prompt("1", [("plus", "2")]).prompt_id != make_prompt("1", [("plus", "3")]).prompt_id


def test_unknown_operation_or_number_shows_nothing():
    environment = Calculator()
    for action in ("calc nothing 1 2", "calc add 1 97", "calc add -1 2", "calc add 01 2", "calc add ١ 2"):
        assert environment.step(environment.reset(draw(1)[0]), action).observation == "nothing"


@pytest.mark.parametrize(
    "text", ["", "</think>", "answer", "answer 1 2", "calc", "calc add 1", "CALC add 1 2", "é 木 \x00"]
)
def test_any_text_is_a_transition(text):
    environment = Calculator()
    assert environment.step(environment.reset(draw(1)[0]), text).stop_reason == StopReason.MALFORMED_ACTION


def test_the_last_turn_may_answer_but_not_calculate():
    environment = Calculator(max_turns=2)
    state = environment.step(environment.reset(draw(1)[0]), "calc add 1 2").state
    assert environment.step(state, "calc add 1 2").stop_reason == StopReason.MAX_TURNS
    assert environment.step(state, "answer 3").answer == "3"


def test_rare_words_are_rare():
    chains = draw_chains(np.random.default_rng(0), OPERATORS, {2: 1.0}, zipf_weights(2.0))
    words = [word for _ in range(500) for word in next(chains)]
    assert words.count(OPERATORS[0]) > 5 * words.count(OPERATORS[3]) > 0


def test_the_look_up_task_draws_the_same_chains():
    """Its prompts stay what they are when it draws by the shared function."""
    theirs = multihop.generate_prompts(np.random.default_rng(7), {2: 0.4, 3: 0.6}, multihop.zipf_weights(1.5))
    rng = np.random.default_rng(7)
    for chain in draw_chains(rng, RELATIONS, {2: 0.4, 3: 0.6}, zipf(len(RELATIONS), 1.5)):
        prompt = next(theirs)
        assert chain == prompt.metadata["relations"]
        rng.integers(40)
        assert prompt.metadata["seed"] == int(rng.integers(2**31))
        if len(chain) == 3:
            break
