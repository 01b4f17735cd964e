"""Verdicts on function calls: the final state and the results count, not the text; own failures are no wrong answer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")

from bench.functions_gold import answer_of, corrupt, reference_verdict, variants
from components.environments.base import Prompt
from components.environments.functions import Functions
from components.environments.functions.calls import write_turns
from components.environments.functions.gold import gold_turns
from components.environments.functions.prompts import MULTI_TURN, SINGLE_TURN, load_bfcl
from components.environments.parsing import Call
from components.environments.verify import verify

# Rows whose possible answers contradict their own function documents: a required parameter without a possible value, or
# a parameter that the function has not.
UNSATISFIABLE = {"live_simple_106-63-0", "live_simple_112-68-0", "live_multiple_862-181-3", "live_multiple_964-207-0"}


@pytest.fixture(scope="module")
def multi_turn() -> list[Prompt]:
    return load_bfcl(MULTI_TURN)


@pytest.fixture(scope="module")
def base(multi_turn) -> Prompt:
    return multi_turn[0]


def reward(prompt: Prompt, turns) -> float | None:
    return verify(Functions(), prompt, write_turns(turns)).reward


def test_all_multi_turn_ground_truths_score_1_and_a_quarter_0_without_their_last_call(multi_turn):
    environment = Functions()
    assert len(multi_turn) == 800
    for number, prompt in enumerate(multi_turn):
        gold = gold_turns(prompt)
        assert environment.score(prompt, answer_of(prompt, gold)) == 1.0, prompt.metadata["source_id"]
        if number % 4:
            continue  # bench/functions_gold.py corrupts them all
        kind, dropped = next(corrupt(gold))
        assert kind == "dropped"
        assert environment.score(prompt, answer_of(prompt, dropped)) == 0.0, prompt.metadata["source_id"]


def test_all_single_turn_rows_score_1_and_corrupted_ones_0_but_for_those_that_contradict_themselves():
    environment, failed = Functions(), set()
    for prompt in load_bfcl(SINGLE_TURN):
        for kind, turns in variants(prompt):
            if environment.score(prompt, answer_of(prompt, turns)) != float(kind == "gold"):
                failed.add(prompt.metadata["source_id"])
    assert failed == UNSATISFIABLE


def test_verdicts_are_those_of_the_package(multi_turn):
    environment = Functions()
    for prompt in multi_turn[::16]:
        for _, turns in variants(prompt):
            ours = environment.score(prompt, answer_of(prompt, turns))
            assert bool(ours) == reference_verdict(prompt, turns), prompt.metadata["source_id"]


def test_one_call_a_step_is_as_good_as_all_at_once(base):
    single = [[[call] for step in turn for call in step] for turn in gold_turns(base)]
    assert single != gold_turns(base)
    assert reward(base, single) == 1.0


def test_calls_that_change_nothing_are_free_and_wrong_ones_forgiven(base):
    turns = gold_turns(base)
    turns[0].insert(0, [Call("ls", {}), Call("no_such", {}), Call("cd", {"folder": "nowhere"})])
    assert reward(base, turns) == 1.0


def test_a_change_too_many_or_a_turn_too_late_is_wrong(base):
    extra = gold_turns(base)
    extra[0].append([Call("mkdir", {"dir_name": "more"})])
    assert reward(base, extra) == 0.0
    late = gold_turns(base)
    late[1] = late[0] + late[1]
    late[0] = []
    assert reward(base, late) == 0.0


def test_another_number_of_turns_or_no_answer_is_wrong(base):
    assert reward(base, gold_turns(base)[:-1]) == 0.0
    assert verify(Functions(), base, None).reward == 0.0


def test_scoring_twice_gives_the_same_verdict_and_changes_no_prompt(base):
    before = deepcopy(base)
    assert [reward(base, gold_turns(base)) for _ in range(3)] == [1.0] * 3
    assert base == before


def test_failures_of_the_verifier_are_a_status(base):
    gold = write_turns(gold_turns(base))
    unknown = replace(base, metadata={**base.metadata, "classes": ["NoSuchAPI"]})
    short = replace(base, answer=write_turns(gold_turns(base)[:-1]))
    for prompt, answer in ((unknown, gold), (short, gold), (base, "no calls")):
        outcome = verify(Functions(), prompt, answer)
        assert outcome.reward is None
        assert outcome.status == "error"


def test_irrelevance_wants_no_call_and_relevance_some():
    no, yes = load_bfcl(["irrelevance"])[0], load_bfcl(["live_relevance"])[0]
    assert (reward(no, [[]]), reward(no, [[[Call("f", {})]]])) == (1.0, 0.0)
    assert (reward(yes, [[]]), reward(yes, [[[Call("f", {})]]])) == (0.0, 1.0)


def test_parallel_calls_may_come_in_any_order_but_in_number():
    prompt = load_bfcl(["parallel"])[0]
    calls = gold_turns(prompt)[0][0]
    assert len(calls) > 1
    assert reward(prompt, [[calls[::-1]]]) == 1.0
    assert reward(prompt, [[[*calls, calls[0]]]]) == 0.0


@pytest.mark.parametrize("value", [None, "x", [], {}, [None], [{}], {"a": {"b": [1]}}, True, 1e308, "a" * 60_000])
def test_arguments_of_any_shape_are_judged(value):
    for category in ("simple_python", "live_simple"):
        for prompt in load_bfcl([category])[::20]:
            call, *_ = gold_turns(prompt)[0][0]
            for key in call.arguments:
                other = Call(call.name, {**call.arguments, key: value})
                assert verify(Functions(), prompt, write_turns([[[other]]])).status == "ok"
