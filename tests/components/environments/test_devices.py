"""The built-in function-calling task: gold proves it, the wiring changes, and the final settings decide."""

from __future__ import annotations

import numpy as np
import pytest
from components.verifiers.exact_match import ExactMatch

from components.environments.base import replay
from components.environments.devices import (
    CIRCUITS,
    DEVICES,
    FUNCTIONS,
    SKILLS,
    Devices,
    State,
    generate_prompts,
    make_prompt,
    solve,
    vocabulary,
    zipf_weights,
)
from components.environments.verify import verify
from components.tree.schema import StopReason


def draw(count: int, seed: int = 0) -> list:
    stream = generate_prompts(np.random.default_rng(seed), {1: 1, 2: 1, 3: 1})
    return [next(stream) for _ in range(count)]


def reward(prompt, actions: list[str]) -> float | None:
    environment = Devices()
    state = replay(environment, prompt, actions)
    return verify(ExactMatch(), prompt, environment.step(state, "answer done").answer).reward


def calls(prompt, changes: list[tuple[str, str]]) -> list[str]:
    """Look-up and call for every change."""
    state, actions = State(prompt.metadata["seed"]), []
    for device, skill in changes:
        actions += [f"find {device}", f"call {FUNCTIONS[skill][0]} {state.circuit(device)}"]
        state = state.change(device, skill)
    return actions


def test_gold_path_scores_1_and_its_observations_are_those_of_the_environment():
    for prompt in draw(100):
        environment, state = Devices(), Devices().reset(prompt)
        for action, observation in solve(prompt):
            transition = environment.step(state, action)
            assert transition.observation == observation
            state = transition.state
        assert transition.stop_reason == StopReason.ANSWERED
        assert verify(ExactMatch(), prompt, transition.answer).reward == 1.0


def test_a_change_left_out_or_made_otherwise_scores_0():
    for prompt in draw(100):
        changes = [tuple(change) for change in prompt.metadata["changes"]]
        if len({device for device, _ in changes}) < len(changes):
            continue  # a change may be undone, or made twice
        others = [changes[:-1], [*changes[:-1], (changes[-1][0], SKILLS[SKILLS.index(changes[-1][1]) - 1])]]
        assert [reward(prompt, calls(prompt, other)) for other in others] == [0.0, 0.0]


def test_circuits_must_be_looked_up_again_after_every_change():
    stale = 0
    for seed in range(100):
        prompt = make_prompt(seed, [("lamp", "warm"), ("oven", "silent")])
        state = State(seed)
        actions = [f"call heat {state.circuit('lamp')}", f"call mute {state.circuit('oven')}"]
        stale += reward(prompt, actions) == 1.0
    assert stale < 20  # by chance the oven stays on its circuit once in 16


def test_order_decides_between_settings_of_one_slot():
    prompt = make_prompt(1, [("lamp", "warm"), ("lamp", "cold")])
    assert prompt.answer == "lamp temperature cold"
    assert reward(prompt, calls(prompt, [("lamp", "warm"), ("lamp", "cold")])) == 1.0
    assert reward(prompt, calls(prompt, [("lamp", "cold"), ("lamp", "warm")])) == 0.0
    assert reward(prompt, calls(prompt, [("lamp", "cold")])) == 1.0  # the state is judged, not the path


def test_every_device_hangs_on_a_circuit_of_its_own():
    for changes in range(20):
        state = State(3, changes=changes)
        assert sorted(state.circuit(device) for device in DEVICES) == sorted(CIRCUITS)
        assert all(state.device(state.circuit(device)) == device for device in DEVICES)


def test_a_step_leaves_the_old_state_as_it_was():
    environment, state = Devices(), Devices().reset(draw(1)[0])
    first, second = (environment.step(state, f"call heat {circuit}").state for circuit in CIRCUITS[:2])
    assert state == environment.reset(draw(1)[0])
    assert first.settings != second.settings


@pytest.mark.parametrize(
    "action", ["find nothing", "call heat", "call heat lamp", "call warm c0", "answer", "", "a " * 9999]
)
def test_any_text_is_a_transition_that_changes_nothing(action):
    state = Devices().reset(draw(1)[0])
    transition = Devices().step(state, action)
    assert transition.observation == "nothing" or transition.stop_reason == StopReason.MALFORMED_ACTION
    assert transition.state.settings == ()


def test_turns_are_limited():
    environment, state = Devices(max_turns=3), Devices().reset(draw(1)[0])
    for _ in range(2):
        state = environment.step(state, "find lamp").state
    assert environment.step(state, "find lamp").stop_reason == StopReason.MAX_TURNS
    assert environment.step(state, "answer done").stop_reason == StopReason.ANSWERED


def test_vocabulary_holds_every_word_once():
    words = vocabulary()
    assert len(words) == len(set(words))
    used = {
        w
        for p in draw(300)
        for text in (p.question, *(t for turn in solve(p) for t in turn if t))
        for w in text.split()
    }
    assert used <= set(words)
    assert len(SKILLS) == len({function for function, _ in FUNCTIONS.values()}) == 24


def test_prompts_are_deterministic_and_follow_the_weights():
    assert draw(5) == draw(5)
    stream = generate_prompts(np.random.default_rng(0), {1: 1}, zipf_weights(2.0))
    first = np.mean([next(stream).metadata["changes"][0][1] == SKILLS[0] for _ in range(400)])
    assert 0.5 < first < 0.75  # 1 / sum of 1/rank^2 = 0.62
