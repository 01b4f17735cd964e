"""The built-in look-up task: nothing in it can be memorised but the skill."""

from __future__ import annotations

import numpy as np

from components.environments.multihop import ENTITIES, FIELDS, MultiHop, look_up, make_prompt


def test_a_wrong_field_leads_elsewhere():
    """A wrong search may still arrive at the answer, by chance."""
    environment, right = MultiHop(), []
    for seed in range(300):
        prompt = make_prompt(seed, ["mother", "boss"], "ann")
        state = environment.reset(prompt)
        first = environment.step(state, f"search ann {FIELDS['teacher']}")  # of the boss
        second = environment.step(first.state, f"search {first.observation} {FIELDS['mother']}")
        right.append(environment.score(prompt, second.observation))
    assert np.mean(right) < 3 / len(ENTITIES)


def test_answers_do_not_depend_on_the_question_alone():
    answers = {make_prompt(seed, ["mother", "boss"], "ann").answer for seed in range(400)}
    assert answers == set(ENTITIES)
    assert make_prompt(7, ["mother", "boss"], "ann").question == "the mother of the boss of ann ?"


def test_what_is_unknown_finds_nothing_and_leaves_the_state_alone():
    environment = MultiHop()
    state = environment.reset(make_prompt(3, ["mother"], "ann"))
    for action in ("search nobody mat", "search ann nofield"):
        assert environment.step(state, action).observation == "nothing"
    assert environment.step(state, "<think> x </think> search ann mat").observation == look_up(3, "ann", "mat")
    assert state == environment.reset(make_prompt(3, ["mother"], "ann"))
