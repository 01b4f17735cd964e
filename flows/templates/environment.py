"""The task `example`: a walk on a circle of 20 numbers, one step a turn. "5 up leap ?" is answered by 9."""

import numpy as np

from components.environments.base import Prompt, State, Transition, content_id
from components.environments.generated import GeneratedEnvironment
from components.tree.schema import StopReason

STEPS = {"up": 1, "down": -1, "leap": 3, "drop": -3, "jump": 5, "fall": -5}
NUMBERS = [str(number) for number in range(20)]


def walk(number: str, word: str) -> str:
    return NUMBERS[(int(number) + STEPS[word]) % len(NUMBERS)]


class Example(GeneratedEnvironment):
    """A walk on a circle of numbers, one step a turn."""

    name = "example"
    skills = list(STEPS)  # a question is a chain of these words, 2 to 4 by default

    def make_prompt(self, rng: np.random.Generator, chain: list[str]) -> Prompt:
        start = answer = NUMBERS[rng.integers(len(NUMBERS))]
        for word in chain:
            answer = walk(answer, word)
        question = " ".join([start, *chain, "?"])
        return Prompt(content_id(question), question, answer, {"start": start, "chain": chain})

    def vocabulary(self) -> list[str]:
        return ["?", "walk", "answer", "nothing", *STEPS, *NUMBERS]

    def step(self, state: State, action: str) -> Transition:
        """What a turn leads to: `walk WORD NUMBER` shows the next number, `answer NUMBER` ends the rollout."""
        after = state.next()
        match action.split():
            case ["answer", number]:
                return Transition(after, stop_reason=StopReason.ANSWERED, answer=number)
            case ["walk", word, number] if after.turn < self.params.max_turns:
                known = word in STEPS and number in NUMBERS
                return Transition(after, observation=walk(number, word) if known else "nothing")
            case _:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)

    def solve(self, prompt: Prompt) -> list[str]:
        """The turns that earn the reward; the tiny policy is warmed up on such demonstrations."""
        number, turns = prompt.metadata["start"], []
        for word in prompt.metadata["chain"]:
            turns.append(f"walk {word} {number}")
            number = walk(number, word)
        return [*turns, f"answer {number}"]
