"""What the built-in tasks share: their gold paths, their words, and prompts that depend on settings alone."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from components.environments.base import Environment, Prompt
from components.environments.calculator import Calculator
from components.environments.devices import Devices
from components.environments.generated import GeneratedEnvironment
from components.environments.multihop import MultiHop
from components.errors import UserError
from components.tree.schema import StopReason

KINDS = (MultiHop, Calculator, Devices)
HOPS = {1: 1.0, 2: 1.0, 3: 1.0}


def made(kind: type[GeneratedEnvironment], **section) -> GeneratedEnvironment:
    return kind(kind.Params(**{"max_turns": 9, "hops": HOPS} | section))


def draw(environment: GeneratedEnvironment, count: int, seed: int = 0, zipf: float = 0.0) -> list[Prompt]:
    return list(islice(environment.generate(np.random.default_rng(seed), HOPS, zipf), count))


def answer_after(environment: Environment, prompt: Prompt, turns: list[str]) -> str | None:
    """What the rollout of these turns answers."""
    state = environment.reset(prompt)
    for turn in turns:
        transition = environment.step(state, turn)
        state = transition.state
    return transition.answer


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def environment(request) -> GeneratedEnvironment:
    return made(request.param)


def test_gold_path_scores_1(environment):
    for prompt in draw(environment, 300):
        answer = answer_after(environment, prompt, environment.solve(prompt))
        assert (answer, environment.score(prompt, answer)) == (prompt.answer, 1.0)
    assert environment.score(prompt, None) == 0.0


def test_words_are_in_the_vocabulary_once_each(environment):
    words = environment.vocabulary()
    assert len(words) == len(set(words))
    used = {w for p in draw(environment, 300) for text in (p.question, *environment.solve(p)) for w in text.split()}
    assert used <= set(words)
    assert len(environment.skills) == 24


def test_prompts_follow_the_seed_and_ids_their_content(environment):
    assert draw(environment, 20) == draw(environment, 20) != draw(environment, 20, seed=1)
    assert len({p.prompt_id for p in draw(environment, 500)}) > 450


def test_rare_words_are_rare(environment):
    words = [
        word for p in draw(environment, 500, zipf=2.0) for word in p.question.split() if word in environment.skills
    ]
    assert words.count(environment.skills[0]) > 5 * words.count(environment.skills[3]) > 0


@pytest.mark.parametrize("weights", [0.0, 1.3])
def test_chains_are_those_that_generator_choice_draws(environment, weights):
    rng, skills = np.random.default_rng(7), environment.skills
    frequency = 1.0 / np.arange(1, len(skills) + 1) ** weights
    made_of = []
    environment.make_prompt = lambda rng, chain: made_of.append(chain)  # draws nothing itself
    draw(environment, 200, 7, weights)
    for chain in made_of:
        size = rng.choice([1, 2, 3], p=[1 / 3] * 3)
        assert chain == [skills[i] for i in rng.choice(len(skills), size=size, p=frequency / frequency.sum())]


@pytest.mark.parametrize(
    "text", ["", "</think>", "answer", "answer a b", "search", "calc add 1", "CALC add 1 2", "é 木 \x00", "a " * 9999]
)
def test_any_text_is_a_transition(environment, text):
    transition = environment.step(environment.reset(draw(environment, 1)[0]), text)
    assert transition.stop_reason == StopReason.MALFORMED_ACTION


def test_the_last_turn_may_answer_but_not_call(environment):
    prompt = next(p for p in draw(environment, 100) if len(environment.solve(p)) > 2)
    environment, (call, *_, answer) = made(type(environment), max_turns=4, hops={1: 1.0}), environment.solve(prompt)
    state = environment.reset(prompt)
    for _ in range(3):
        state = environment.step(state, call).state
    assert environment.step(state, call).stop_reason == StopReason.MAX_TURNS
    assert environment.step(state, answer).stop_reason == StopReason.ANSWERED


def test_too_few_turns_for_the_hops_are_refused():
    with pytest.raises(ValueError, match="max_turns=4 leaves no turn for the answer after 4 hops"):
        MultiHop.Params(max_turns=4, hops={4: 1.0})
    with pytest.raises(ValueError, match="max_turns=4 leaves no turn"):
        Devices.Params(max_turns=4, hops={2: 1.0})


def test_more_prompts_than_there_are_is_an_error_not_an_endless_search(environment, monkeypatch):
    same = draw(environment, 1)[0]
    monkeypatch.setattr(type(environment), "make_prompt", lambda self, rng, chain: same)
    with pytest.raises(UserError, match=rf"train_prompts=4096: {environment.name} .* no more than about 1 different"):
        environment.prompts()
