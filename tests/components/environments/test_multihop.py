"""The built-in look-up task: gold proves it, and nothing in it can be memorised."""

from __future__ import annotations

import numpy as np
import pytest
from components.verifiers.exact_match import ExactMatch

from components.environments.multihop import (
    ENTITIES,
    FIELDS,
    RELATIONS,
    MultiHop,
    generate_prompts,
    make_prompt,
    solve,
    zipf_weights,
)
from components.environments.verify import verify
from components.tree.schema import StopReason


def draw(count: int, seed: int = 0) -> list:
    stream = generate_prompts(np.random.default_rng(seed), {2: 1, 3: 1, 4: 1})
    return [next(stream) for _ in range(count)]


def final_answer(prompt, change: int | None = None) -> str | None:
    """The answer along the gold path, with the relation of one hop searched in a wrong field."""
    environment, state = MultiHop(6), None
    state, entity = environment.reset(prompt), prompt.metadata["start"]
    for hop, relation in enumerate(reversed(prompt.metadata["relations"])):
        used = RELATIONS[(RELATIONS.index(relation) + 1) % len(RELATIONS)] if hop == change else relation
        transition = environment.step(state, f"<think> x </think> search {entity} {FIELDS[used]}")
        state, entity = transition.state, transition.observation
    return environment.step(state, f"<think> done </think> answer {entity}").answer


def test_gold_path_scores_1_and_a_wrong_field_mostly_0():
    verifier = ExactMatch()
    prompts = draw(300)
    assert all(verify(verifier, p, final_answer(p)).reward == 1.0 for p in prompts)
    wrong = np.mean([verify(verifier, p, final_answer(p, change=0)).reward for p in prompts])
    assert wrong < 3 / len(ENTITIES)  # a wrong search may still arrive at the answer by chance


def test_gold_turns_are_what_solve_says():
    for prompt in draw(20):
        assert solve(prompt)[-1][0].split()[-1] == prompt.answer
        assert len(solve(prompt)) == len(prompt.metadata["relations"]) + 1


def test_answers_do_not_depend_on_the_question_alone():
    answers = {make_prompt(seed, ["mother", "boss"], "ann").answer for seed in range(400)}
    assert answers == set(ENTITIES)


def test_unknown_entity_or_field_finds_nothing():
    environment = MultiHop(6)
    state = environment.reset(draw(1)[0])
    for action in ("search nobody mat", "search ann nofield"):
        assert environment.step(state, action).observation == "nothing"


@pytest.mark.parametrize(
    "text", ["", "</think>", "answer", "answer a b", "search", "SEARCH ann mat", "é 木 \x00", "a " * 9999]
)
def test_any_text_is_a_transition(text):
    environment = MultiHop(6)
    transition = environment.step(environment.reset(draw(1)[0]), text)
    assert transition.stop_reason == StopReason.MALFORMED_ACTION


def test_vocabulary_is_one_word_each():
    words = [*ENTITIES, *FIELDS, *FIELDS.values()]
    assert len(words) == len(set(words)) == 40 + 24 + 24


def test_zipf_weights_fall_with_rank():
    assert zipf_weights(2.0)[3] == pytest.approx(zipf_weights(2.0)[0] / 16)


def test_verifier_failure_is_a_status_never_a_wrong_answer():
    class Broken:
        def score(self, prompt, answer):
            raise RuntimeError("no")

    class Odd:
        def score(self, prompt, answer):
            return float("nan")

    prompt = draw(1)[0]
    for verifier in (Broken(), Odd()):
        outcome = verify(verifier, prompt, "ann")
        assert outcome.reward is None
        assert outcome.status == "error"
    assert verify(ExactMatch(), prompt, None).reward == 0.0
