"""The default predictor: what it answers before, during and after a fit, and what its state may look like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from components.allocation.utilities import root_utility
from components.errors import UserError
from components.policy.checkpoint import load_model
from components.predictor import policy_features
from components.predictor.base import Prefix
from components.predictor.heads import BetaEnsemble, beta_binomial_nll, mixture_belief
from components.predictor.models.policy_features import PolicyFeaturesParams
from components.predictor.policy_features import PolicyFeatures

PARAMS = PolicyFeaturesParams(steps=150)


@pytest.fixture
def predictor(random_policy: Path) -> PolicyFeatures:
    return PolicyFeatures(PARAMS, PARAMS.members, random_policy)


def test_unfitted_predictor_knows_nothing_and_says_so(predictor, histories):
    belief = predictor.predict(histories(20)[0])
    np.testing.assert_allclose(belief.mean_A, 0.5, atol=1e-6)
    np.testing.assert_allclose(belief.concentration_A, 2.0, rtol=1e-5)


def test_ignorance_does_not_look_like_contrast(predictor, histories):
    """A point belief of 0.5 promises more contrast than Beta(1, 1) does at m = 2: 0.5 against 1/3."""
    ignorant = predictor.predict(histories(1)[0])
    assert root_utility(ignorant, np.array([2]))[0] == pytest.approx(1 / 3, rel=1e-4)


def test_members_that_disagree_lower_the_concentration():
    mean, concentration = torch.tensor([[0.2, 0.5], [0.8, 0.5]]), torch.full((2, 2), 20.0)
    belief = mixture_belief(mean, concentration)
    np.testing.assert_allclose(belief.mean_A, [0.5, 0.5])
    assert belief.concentration_A[1] == pytest.approx(20.0, rel=1e-5)
    # Variance of the mixture: mean of 0.16/21, plus 0.09 between the members; 0.25/(c+1) equals it.
    assert belief.concentration_A[0] == pytest.approx(0.25 / (0.16 / 21 + 0.09) - 1, rel=1e-5)


def test_every_other_member_does_not_see_the_hidden_features():
    head = BetaEnsemble(features=6, hidden=4, members=4, hide=3)
    with torch.no_grad():
        head.outer.normal_()
        features = torch.randn(5, 6)
        other = torch.cat([torch.randn(5, 3), features[:, 3:]], dim=1)
        same = (head(features)[0] == head(other)[0]).all(1)
    assert same.tolist() == [False, True, False, True]


def test_fit_learns_and_generalises(predictor, histories):
    prefixes, rate = histories(600)
    rng = np.random.default_rng(1)
    trials = rng.integers(1, 9, len(prefixes))
    predictor.fit(prefixes, rng.binomial(trials, rate), trials, new=600, seed=0)
    unseen, rate = histories(200, seed=2)
    mean = predictor.predict(unseen).mean_A
    assert np.corrcoef(mean, rate)[0, 1] > 0.6
    assert np.mean((mean - rate) ** 2) < 0.6 * np.var(rate)


def test_a_turn_sampled_against_the_odds_is_seen(predictor, histories):
    """Rollouts that differ only in how likely their action was: the fit tells them apart."""
    roots, _ = histories(300)
    unsure = np.arange(300) % 2 == 0
    prefixes = [
        Prefix(p.prompt, [*p.token_ids, 7], [*p.is_action, True], [*p.logprobs, -4.0 if u else -0.01], ("turn",))
        for p, u in zip(roots, unsure, strict=True)
    ]
    predictor.fit(prefixes, np.where(unsure, 0.0, 1.0), np.ones(300), new=300, seed=0)
    mean = predictor.predict(prefixes).mean_A
    assert mean[~unsure].min() > mean[unsure].max()


def test_a_label_counts_as_much_as_its_rollouts():
    """One success in 1 says less than 8 in 8: the likelihood falls faster for the latter as the mean drops."""
    mean, concentration = torch.tensor([0.25, 0.25]), torch.tensor([4.0, 4.0])
    nll = beta_binomial_nll(mean, concentration, torch.tensor([1.0, 8.0]), torch.tensor([1.0, 8.0]))
    assert float(nll[0]) == pytest.approx(np.log(4.0))
    assert nll[1] > nll[0]


@pytest.mark.parametrize(("limit", "read"), [(100, [17]), (12, [11, 12, 7])])
def test_tokens_that_histories_share_are_read_once(predictor, random_policy, histories, monkeypatch, limit, read):
    prompt, tokens = histories(1)[0][0].prompt, list(range(10, 22))

    def history(ids: list[int]) -> Prefix:
        acted = [i >= 3 for i in range(len(ids))]
        return Prefix(prompt, ids, acted, [-0.5 if a else float("nan") for a in acted], ("t",))

    branch, other, again = [*tokens[:6], 40], [9, 9, 9, 8], tokens[:7]
    prefixes = [history(ids) for ids in (tokens[:4], tokens, other, again, other[:3], branch, again)]
    model, calls = load_model(random_policy).eval(), []
    decoder = predictor.model.get_decoder()
    handle = decoder.register_forward_pre_hook(lambda m, a, kw: calls.append(kw["input_ids"].shape), with_kwargs=True)
    monkeypatch.setattr(policy_features, "FORWARD_TOKENS", limit)
    with torch.no_grad():
        found = predictor._states(prefixes)
    handle.remove()
    assert calls == [(1, count) for count in read]
    for row, prefix in zip(found, prefixes, strict=True):
        with torch.inference_mode():
            states = model.get_decoder()(
                input_ids=torch.tensor([prefix.token_ids]), output_hidden_states=True
            ).hidden_states
        expected = torch.cat([s[0, -1] for s in states] + [s[0, :3].mean(0) for s in states])
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)


def test_state_survives_a_checkpoint(predictor, random_policy, tmp_path, histories):
    prefixes, rate = histories(50)
    predictor.fit(prefixes, rate, np.ones(50), new=50, seed=0)
    predictor.save(tmp_path)
    again = PolicyFeatures(PARAMS, PARAMS.members, random_policy)
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
    other = PolicyFeaturesParams(hidden=16) if damage == "other size" else PARAMS
    with pytest.raises(UserError, match="missing or damaged"):
        PolicyFeatures(other, other.members, random_policy).load(tmp_path)


def test_nothing_to_fit_is_no_crash(predictor):
    assert predictor.fit([], np.array([]), np.array([]), new=0, seed=0)["fit_prefixes"] == 0
    assert len(predictor.predict([])) == 0


def test_diverging_fit_is_undone_with_a_warning(random_policy, histories, caplog):
    prefixes, rate = histories(50)
    predictor = PolicyFeatures(PolicyFeaturesParams(learning_rate=1e30), 4, random_policy)
    before = predictor.predict(prefixes).mean_A
    assert np.isnan(predictor.fit(prefixes, rate, np.ones(50), new=50, seed=0)["fit_loss"])
    assert "predictor.learning_rate" in caplog.text
    np.testing.assert_array_equal(predictor.predict(prefixes).mean_A, before)
