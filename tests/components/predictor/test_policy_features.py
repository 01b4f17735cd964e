"""The default predictor: what it answers before, during and after a fit, and what its state may look like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from components.allocation.utilities import root_utility
from components.config import PredictorParams
from components.errors import UserError
from components.policy.checkpoint import load_model
from components.predictor import make_predictor
from components.predictor.policy_features import PolicyFeatures, beta_binomial_nll

SETTINGS = PredictorParams(steps=150)


def histories(count: int, seed: int = 0) -> tuple[list[list[int]], np.ndarray]:
    """Random histories, and a success rate that depends on their last token."""
    rng = np.random.default_rng(seed)
    prefixes = [[*rng.integers(6, 90, rng.integers(5, 12)).tolist(), int(rng.integers(10, 16))] for _ in range(count)]
    return prefixes, np.array([0.9 if p[-1] % 2 else 0.1 for p in prefixes])


@pytest.fixture
def predictor(random_policy: Path) -> PolicyFeatures:
    return make_predictor(SETTINGS, random_policy)  # type: ignore[return-value]


def test_unfitted_predictor_knows_nothing_and_says_so(predictor):
    belief = predictor.predict(histories(20)[0])
    np.testing.assert_allclose(belief.mean_A, 0.5, atol=1e-6)
    np.testing.assert_allclose(belief.concentration_A, 2.0, rtol=1e-5)


def test_ignorance_does_not_look_like_contrast(predictor):
    """A point belief of 0.5 promises twice the contrast that Beta(1, 1) does at m = 2: 0.5 against 1/3."""
    ignorant = predictor.predict(histories(1)[0])
    assert root_utility(ignorant, np.array([2]))[0] == pytest.approx(1 / 3, rel=1e-4)


def test_fit_learns_and_generalises(predictor):
    prefixes, rate = histories(600)
    rng = np.random.default_rng(1)
    trials = rng.integers(1, 9, len(prefixes))
    predictor.fit(prefixes, rng.binomial(trials, rate) / trials, trials, seed=0)
    unseen, rate = histories(200, seed=2)
    mean = predictor.predict(unseen).mean_A
    assert np.corrcoef(mean, rate)[0, 1] > 0.6
    assert np.mean((mean - rate) ** 2) < 0.5 * np.var(rate)


def test_a_target_counts_as_much_as_its_leaves():
    """One success in 1 says less than 8 in 8: the likelihood falls faster for the latter as the mean drops."""
    alpha, beta = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 3.0])
    nll = beta_binomial_nll(alpha, beta, torch.tensor([1.0, 8.0]), torch.tensor([1.0, 8.0]))
    assert float(nll[0]) == pytest.approx(np.log(4.0))
    assert nll[1] > nll[0]


def test_prefixes_of_a_rollout_are_read_off_one_forward_pass(predictor, random_policy):
    long = histories(1)[0][0] * 2
    prefixes = [long[:4], long, [9, 9, 9], long[:7], long, [9, 9]]
    model, calls = load_model(random_policy).eval(), []
    decoder = predictor.model.get_decoder()
    handle = decoder.register_forward_pre_hook(lambda m, a, kw: calls.append(kw["input_ids"].shape), with_kwargs=True)
    features = predictor.features(prefixes)
    handle.remove()
    assert [rows for rows, _ in calls] == [2]
    for row, prefix in zip(features, prefixes, strict=True):
        with torch.inference_mode():
            states = model.get_decoder()(input_ids=torch.tensor([prefix]), output_hidden_states=True).hidden_states
        expected = torch.cat([s[0, -1] for s in states] + [s[0].mean(0) for s in states])
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)


def test_state_survives_a_checkpoint(predictor, random_policy, tmp_path):
    prefixes, rate = histories(50)
    predictor.fit(prefixes, rate, np.ones(50), seed=0)
    predictor.save(tmp_path)
    again = make_predictor(SETTINGS, random_policy)
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict(prefixes).mean_A, predictor.predict(prefixes).mean_A)


@pytest.mark.parametrize("damage", ["missing", "truncated", "other size"])
def test_missing_or_damaged_state_is_an_error_never_a_fresh_predictor(predictor, random_policy, tmp_path, damage):
    predictor.save(tmp_path)
    state = tmp_path / "head.safetensors"
    if damage == "missing":
        state.unlink()
    if damage == "truncated":
        state.write_bytes(state.read_bytes()[:100])
    other = PredictorParams(hidden=32) if damage == "other size" else SETTINGS
    with pytest.raises(UserError, match="missing or damaged"):
        make_predictor(other, random_policy).load(tmp_path)


def test_nothing_to_fit_is_no_crash(predictor):
    assert predictor.fit([], np.array([]), np.array([]), seed=0)["fit_prefixes"] == 0
