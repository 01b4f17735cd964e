"""The gold path earns the reward, and nothing else does."""

from example import Example

from components.environments.base import replay


def test_gold_path_is_rewarded_and_a_wrong_answer_is_not():
    environment = Example()
    for prompt in environment.prompts()["test"][:20]:
        *turns, last = environment.solve(prompt)
        end = environment.step(replay(environment, prompt, turns), last)
        assert environment.score(prompt, end.answer) == 1.0
        assert environment.score(prompt, "another") == environment.score(prompt, None) == 0.0


def test_a_state_is_a_value():
    environment = Example()
    prompt = environment.prompts()["test"][0]
    state = environment.reset(prompt)
    first, second = (environment.step(state, environment.solve(prompt)[0]) for _ in range(2))
    assert first == second
    assert state == environment.reset(prompt)
