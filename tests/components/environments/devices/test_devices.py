"""The built-in function-calling task: the wiring changes, and the final settings decide."""

from __future__ import annotations

import pytest

from components.environments.base import Prompt, replay
from components.environments.devices import CIRCUITS, DEVICES, FUNCTIONS, Devices, State, make_prompt
from components.tree.schema import StopReason

PROMPT = make_prompt(5, [("lamp", "warm"), ("oven", "silent")])


def reward(prompt: Prompt, actions: list[str]) -> float:
    environment = Devices()
    return environment.score(prompt, environment.step(replay(environment, prompt, actions), "answer done").answer)


def calls(prompt, changes: list[tuple[str, str]]) -> list[str]:
    """Look-up and call for every change."""
    state, actions = State(prompt.metadata["seed"]), []
    for device, skill in changes:
        actions += [f"find {device}", f"call {FUNCTIONS[skill][0]} {state.circuit(device)}"]
        state = state.change(device, skill)
    return actions


def test_a_change_left_out_or_made_otherwise_scores_0():
    for seed in range(100):
        prompt = make_prompt(seed, [("lamp", "warm"), ("oven", "silent")])
        assert reward(prompt, calls(prompt, [("lamp", "warm")])) == 0.0
        assert reward(prompt, calls(prompt, [("lamp", "warm"), ("oven", "loud")])) == 0.0


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
    environment, state = Devices(), Devices().reset(PROMPT)
    first, second = (environment.step(state, f"call heat {circuit}").state for circuit in CIRCUITS[:2])
    assert state == environment.reset(PROMPT)
    assert first.settings != second.settings


@pytest.mark.parametrize(
    "action", ["find nothing", "call heat", "call heat lamp", "call warm c0", "answer", "", "a " * 9999]
)
def test_any_text_is_a_transition_that_changes_nothing(action):
    state = Devices().reset(PROMPT)
    transition = Devices().step(state, action)
    assert transition.observation == "nothing" or transition.stop_reason == StopReason.MALFORMED_ACTION
    assert transition.state.settings == ()
