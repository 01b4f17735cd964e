"""Verifying: a reward, or a status that says why there is none; wrong signatures are told before a run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from components.environments.base import Environment, Prompt
from components.environments.verify import VerificationError, score_in_worker, verify, verify_all
from components.errors import UserError
from components.tree.schema import Status
from components.workers.pool import Workers

PROMPT = Prompt("p", "q", "a", {})


class Raises(Environment):
    name = "raises"

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def score(self, prompt, answer):
        raise self.error("late")


class OneArgument(Environment):
    name = "one-argument"

    def score(self, prompt):
        return 1.0


class ThreeArguments(Environment):
    name = "three-arguments"

    def score(self, prompt, answer, strict):
        return 1.0


@pytest.mark.parametrize("wrong", [OneArgument, ThreeArguments])
def test_c54_wrong_signature_is_told_before_anything_is_sampled(wrong):
    message = rf"environment\.name={wrong.name}: its method score takes other arguments than \(prompt, answer\)"
    with pytest.raises(UserError, match=message):
        wrong.check(SimpleNamespace())
    Raises.check(SimpleNamespace())


@pytest.mark.parametrize(("error", "status"), [(TimeoutError, Status.TIMEOUT), (ValueError, Status.ERROR)])
def test_a_time_out_is_told_apart_from_other_failures_and_neither_is_a_reward(error, status):
    outcome = verify(Raises(error), PROMPT, "a")
    assert (outcome.reward, outcome.status) == (None, status)
    assert outcome.detail == f"{error.__name__}: late"


@pytest.mark.parametrize("reward", [float("nan"), -0.1, 1.5, float("inf"), "no number"])
def test_what_is_no_reward_is_an_error(reward):
    class Odd(Environment):
        def score(self, prompt, answer):
            return reward

    outcome = verify(Odd(), PROMPT, "a")
    assert (outcome.reward, outcome.status) == (None, Status.ERROR)


@pytest.mark.parametrize("parallel", [1, 3])
def test_many_outcomes_keep_their_order(parallel):
    environment = Environment()
    environment.parallel_scores = parallel
    answers = ["a", "b", None, " A ", "c"]
    assert [o.reward for o in verify_all(environment, [(PROMPT, x) for x in answers])] == [1.0, 0.0, 0.0, 1.0, 0.0]


def test_verifications_from_several_threads_share_one_pool_and_keep_their_order():
    """As shards do, which verify at the same time."""
    with Workers("math:sqrt", count=2) as workers:

        class Roots(Environment):
            parallel_scores = 2

            def score(self, prompt, answer):
                return score_in_worker(workers, float(answer))

        lists = [[(PROMPT, str(n / 100)) for n in range(shard, 64, 4)] + [(PROMPT, "-1")] for shard in range(4)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda cases: verify_all(Roots(), cases), lists))
        for cases, outcomes in zip(lists, found, strict=True):
            rewards = [outcome.reward for outcome in outcomes]
            assert rewards == [*(pytest.approx(float(answer) ** 0.5) for _, answer in cases[:-1]), None]
            assert outcomes[-1].status == Status.ERROR
            assert "math domain error" in outcomes[-1].detail


def test_a_worker_that_fails_or_hangs_gives_no_reward():
    with Workers("time:sleep", timeout=0.3) as workers:
        workers.run(0)
        with pytest.raises(VerificationError, match="TypeError"):
            score_in_worker(workers, "x")
        with pytest.raises(TimeoutError, match=r"stopped after 0\.3 s"):
            score_in_worker(workers, 60)
