"""A verifier is checked once, before anything is sampled."""

from __future__ import annotations

import pytest

from components.config import EnvironmentParams
from components.errors import UserError
from components.verifiers import VERIFIERS, make_verifier


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
