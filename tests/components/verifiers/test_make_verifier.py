"""A verifier is checked once, before anything is sampled; what it raises is a status."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from components.environments.base import EnvironmentParams, Prompt
from components.environments.verify import VERIFIERS, make_verifier, verify, verify_all
from components.errors import UserError
from components.tree.schema import Status
from components.workers.pool import Workers


class OneArgument:
    def score(self, prompt):
        return 1.0


class NoScore:
    pass


@pytest.mark.parametrize("wrong", [OneArgument, NoScore])
def test_c54_wrong_signature_is_told_before_anything_is_sampled(monkeypatch, wrong):
    monkeypatch.setitem(VERIFIERS, "multihop", lambda settings: wrong())
    with pytest.raises(UserError, match=r"the verifier of multihop needs a method score\(prompt, answer\)"):
        make_verifier(EnvironmentParams())


@pytest.mark.parametrize("name", ["multihop", "calculator", "devices", "search", "math", "functions"])
def test_every_registered_verifier_has_the_signature(name):
    turns = EnvironmentParams(name=name, hops={1: 1.0}, max_turns=10)
    if name in ("math", "functions"):
        pytest.importorskip({"math": "math_verify", "functions": "bfcl_eval"}[name])
    assert make_verifier(turns).score


PROMPT = Prompt("p", "q", "a", {})


class Raises:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def score(self, prompt, answer):
        raise self.error("late")


@pytest.mark.parametrize(("error", "status"), [(TimeoutError, Status.TIMEOUT), (ValueError, Status.ERROR)])
def test_a_time_out_is_told_apart_from_other_failures_and_neither_is_a_reward(error, status):
    outcome = verify(Raises(error), PROMPT, "a")
    assert (outcome.reward, outcome.status) == (None, status)
    assert outcome.detail == f"{error.__name__}: late"


@pytest.mark.parametrize("parallel", [1, 3])
def test_many_outcomes_keep_their_order(parallel):
    class Equals:
        def score(self, prompt, answer):
            return float(answer == prompt.answer)

    verifier = Equals()
    verifier.parallel = parallel
    answers = ["a", "b", None, "a", "c"]
    assert [o.reward for o in verify_all(verifier, [(PROMPT, x) for x in answers])] == [1.0, 0.0, 0.0, 1.0, 0.0]


def test_verifications_from_several_threads_share_one_pool_and_keep_their_order():
    """As shards do, which verify at the same time."""
    with Workers("math:sqrt", count=2) as workers:

        class Roots:
            parallel = 2

            def score(self, prompt, answer):
                reply = workers.run(float(answer))
                if reply.status != Status.OK:
                    raise RuntimeError(reply.value)
                return reply.value

        prompt = Prompt("p", "q", "a", {})
        lists = [[(prompt, str(n / 100)) for n in range(shard, 64, 4)] + [(prompt, "-1")] for shard in range(4)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda cases: verify_all(Roots(), cases), lists))
        for cases, outcomes in zip(lists, found, strict=True):
            rewards = [outcome.reward for outcome in outcomes]
            assert rewards == [*(pytest.approx(float(answer) ** 0.5) for _, answer in cases[:-1]), None]
            assert outcomes[-1].status == Status.ERROR
