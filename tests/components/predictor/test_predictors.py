"""Every registered predictor keeps the contract; the posterior counts right; the oracle finds V."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from components.build import make_environment, make_predictor, make_sampler
from components.environments.base import Prompt
from components.environments.dataset import load_prompts, prepare
from components.errors import UserError
from components.params.root import Params, compose
from components.policy.warmup import warm_up
from components.predictor.base import Prefix, labels_of
from components.predictor.models import PREDICTORS
from components.predictor.models.oracle import Oracle
from components.tree.forest import Forest
from components.tree.schema import Node, Origin


def settings(params: Params, name: str = "policy-features", **keys: object) -> Params:
    """The parameters with another predictor, and those of the keys that it has."""
    mine = {key: value for key, value in keys.items() if key in PREDICTORS[name].Params.model_fields}
    return compose(params.model_dump() | {"predictor": {"name": name, **mine}})


TRAINED = [name for name in PREDICTORS if name not in ("oracle", "beta")]


@pytest.mark.parametrize("name", TRAINED)
def test_learns_what_the_history_tells(params, random_policy, histories, name):
    chosen = settings(params, name=name, steps=150, root_weight=1.0, weight_decay=0.01)
    model = make_predictor(chosen, random_policy)
    belief = model.predict(histories(10)[0])
    np.testing.assert_allclose(belief.mean_A, 0.5, atol=1e-6)
    assert (belief.concentration_A <= 2.01).all()  # it says that it knows nothing
    prefixes, rate = histories(500)
    rng = np.random.default_rng(1)
    model.fit(prefixes, rng.binomial(4, rate), np.full(500, 4), new=500, seed=0)
    unseen, rate = histories(200, seed=2)
    assert np.corrcoef(model.predict(unseen).mean_A, rate)[0, 1] > 0.6


@pytest.mark.parametrize("name", [name for name in PREDICTORS if name != "oracle"])
def test_state_survives_a_checkpoint_and_damage_is_an_error(params, random_policy, histories, tmp_path, name):
    chosen = settings(params, name=name, steps=5)
    model = make_predictor(chosen, random_policy)
    prefixes, rate = histories(40)
    model.fit(prefixes, np.round(rate), np.ones(40), new=40, seed=0)
    model.save(tmp_path / "state")
    again = make_predictor(chosen, random_policy, tmp_path / "state")
    np.testing.assert_array_equal(again.predict(prefixes).mean_A, model.predict(prefixes).mean_A)
    np.testing.assert_array_equal(again.predict(prefixes).concentration_A, model.predict(prefixes).concentration_A)
    for file in (tmp_path / "state").iterdir():
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError):
        make_predictor(chosen, random_policy, tmp_path / "state")


def test_fit_depends_on_the_seed_alone(params, random_policy, histories):
    prefixes, rate = histories(40)
    means = []
    for seed in (0, 0, 1):
        model = make_predictor(settings(params, steps=5), random_policy)
        model.fit(prefixes, rate, np.ones(40), new=40, seed=seed)
        means.append(model.predict(prefixes).mean_A)
    np.testing.assert_array_equal(means[0], means[1])
    assert not np.array_equal(means[0], means[2])


def test_c26_posterior_counts_the_rollouts_that_there_were(params, random_policy, histories):
    """One failure adds one failure and no success, also where a prompt had a single rollout."""
    model = make_predictor(settings(params, name="beta", decay=0.5), random_policy)
    (one, other), _ = histories(2)
    model.fit([one], np.array([0.0]), np.array([1]), new=1, seed=0)
    assert model.counts == {one.prompt.prompt_id: (0.0, 1.0)}  # type: ignore[attr-defined]
    model.fit([one, other], np.array([2.0, 3.0]), np.array([2, 3]), new=1, seed=0)  # the second is no new one
    assert model.counts == {one.prompt.prompt_id: (2.0, 0.5)}  # type: ignore[attr-defined]


def test_posterior_falls_back_on_the_rate_of_all_prompts(params, random_policy, histories):
    model = make_predictor(settings(params, name="beta"), random_policy)
    prefixes, _ = histories(51)
    model.fit(prefixes[:50], np.full(50, 1.0), np.full(50, 4), new=50, seed=0)
    belief = model.predict(prefixes[50:])
    assert belief.mean_A[0] == pytest.approx(0.25, abs=0.01)
    assert belief.concentration_A[0] == pytest.approx(2.0)


def test_mixture_moves_the_model_by_the_prompts_own_rollouts(params, random_policy, histories):
    model = make_predictor(settings(params, name="mixture", steps=1), random_policy)
    prefixes, _ = histories(2)
    model.fit(prefixes[:1], np.array([8.0]), np.array([8]), new=1, seed=0)
    belief = model.predict(prefixes)
    assert belief.mean_A[0] > 0.85 > belief.mean_A[1]
    turn = Prefix(prefixes[0].prompt, prefixes[0].token_ids, prefixes[0].is_action, prefixes[0].logprobs, ("a",))
    assert model.predict([turn]).mean_A[0] < 0.85  # what happened at the root is no sample of V at a prefix


def test_backbone_with_another_vocabulary_is_refused(params, random_policy, tmp_path):
    from components.policy.tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer(["other", "words"])
    build_model(params.policy, tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"predictor\.path=.* has another vocabulary"):
        make_predictor(settings(params, name="backbone", path=str(tmp_path)), random_policy)


def test_oracle_agrees_with_other_rollouts_at_roots_and_prefixes(params, tmp_path):
    """Two oracles with different seeds see the same V, up to sampling noise; at a prefix it follows the prefix."""
    environment = make_environment(params)
    policy = warm_up(params.policy, environment, tmp_path)
    prompts = load_prompts(prepare(environment, tmp_path) / "val.parquet")
    sampler = make_sampler(params, policy, 0)
    roots = [Prefix.root(p, sampler.renderer.prompt_ids(sampler.environment.chat(p))) for p in prompts]
    chosen = settings(params, name="oracle", rollouts=32)
    other = compose(chosen.model_dump() | {"run": {"seed": 5}})
    one, two = (make_predictor(each, policy).predict(roots) for each in (chosen, other))
    assert np.abs(one.mean_A - two.mean_A).max() < 0.4
    assert np.corrcoef(one.mean_A, two.mean_A)[0, 1] > 0.9
    np.testing.assert_array_equal(one.concentration_A, 33.0)
    ids, acted = list(roots[0].token_ids), [False] * len(roots[0].token_ids)
    state, path = environment.reset(prompts[0]), environment.solve(prompts[0])[:-1]
    for action in path:
        transition = environment.step(state, action)
        turn = [*sampler.renderer.tokenizer(action, add_special_tokens=False)["input_ids"], sampler.renderer.eos_id]
        seen = sampler.renderer.observation_ids(transition.observation)
        state, ids, acted = transition.state, [*ids, *turn, *seen], acted + [True] * len(turn) + [False] * len(seen)
    solved = Prefix(prompts[0], ids, acted, [0.0] * len(ids), tuple(path))
    assert make_predictor(chosen, policy).predict([solved]).mean_A[0] > 0.6


def test_unknown_predictor_is_one_line_that_names_the_known_ones(params):
    with pytest.raises(UserError, match="choose one of backbone, beta, encoder, mixture, oracle, policy-features"):
        compose(params.model_dump() | {"predictor": {"name": "crystal-ball"}})


def test_missing_state_is_an_error(params, random_policy):
    with pytest.raises(UserError):
        make_predictor(settings(params, name="beta"), random_policy, Path("nowhere"))


def test_oracle_counts_outcomes_of_graded_rewards():
    """A reward of 0.4 at every rollout is no success, however many there are."""
    prompt = Prompt("p", "q", "a")

    class Sampler:
        def world(self, prompt, actions):
            return None

        def sample(self, starts, first_id):
            return [
                Node(0, "p", first_id, 0, 1, Origin.FACTUAL, start.anchor_id, observation="a", stop_reason="answered")
                for start in starts
            ]

    for reward, mean in ((0.4, 0.5 / 5), (0.6, 4.5 / 5)):
        sampler = Sampler()
        sampler.environment = SimpleNamespace(score=lambda prompt, answer, reward=reward: reward)
        belief = Oracle(sampler, 4, 0).predict([Prefix.root(prompt, [1])])
        assert belief.mean_A.tolist() == pytest.approx([mean])


def test_labels_are_the_fresh_rollouts_at_roots_and_inner_nodes():
    """A continuation that starts at the prefix is a label there, and none for the root; leaves have no label."""
    asked, end = Prompt("p", "q", "a"), {"stop_reason": "answered", "is_action": [True], "logprobs": [-0.1]}
    nodes = [
        Node(0, "p", 0, -1, 0, Origin.ROOT, token_ids=[5], is_action=[False], logprobs=[0.0]),
        Node(0, "p", 1, 0, 1, Origin.FACTUAL, 0, 0, [6], [True], [-0.1], action="look"),
        Node(0, "p", 2, 1, 2, Origin.FACTUAL, 0, 0, [7], reward=0.0, **end),
        Node(0, "p", 3, 1, 2, Origin.COUNTERFACTUAL, 1, 0, [8], reward=1.0, **end),
    ]
    prefixes, successes, trials = labels_of(Forest(nodes), {"p": asked})
    assert [(p.token_ids, p.actions, p.prompt_tokens) for p in prefixes] == [([5], (), 1), ([5, 6], ("look",), 1)]
    assert (successes.tolist(), trials.tolist()) == ([0.0, 1.0], [1, 2])
