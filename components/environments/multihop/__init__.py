"""Multi-hop look-ups: "the mother of the boss of ann ?", answered by searching a knowledge base one hop at a time.

Every prompt brings a knowledge base of its own, so nothing can be memorised but the skill: the order of the hops, and
which field of the search tool each relation word of the question names. The knowledge base is a function of the
prompt's seed rather than a stored table: field f of entity e is a hash of (seed, e, f). A search with the wrong field
therefore returns a wrong but plausible entity, as a real search would.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from components.environments.base import Prompt, Transition, content_id
from components.environments.generated import GeneratedEnvironment
from components.tree.schema import StopReason

ENTITIES = (  # noqa: SIM905 - 40 names are easier to read so than one a line
    "ann bea cal dan eve fay gus hal ida jon kim leo mia ned ola pam quin ray sue tom "
    "una val wes xia yul zoe abe ben cy dee eli flo gil hew ivy jed kai lou max nan"
).split()

# The words of the questions, and the field of the search tool that each one names.
FIELDS = {
    "mother": "mat", "father": "pat", "boss": "head", "friend": "pal", "teacher": "tutor", "doctor": "medic",
    "neighbour": "next", "rival": "foe", "tenant": "lodger", "owner": "holder", "pupil": "cadet", "cousin": "kin",
    "partner": "mate", "lawyer": "counsel", "banker": "teller", "driver": "pilot", "cook": "chef", "guard": "watch",
    "tailor": "sewer", "baker": "oven", "painter": "brush", "singer": "voice", "writer": "pen", "heir": "next_of_kin",
}  # fmt: skip


def look_up(seed: int, entity: str, field: str) -> str:
    """The knowledge base: which entity stands in `field` of `entity`."""
    digest = hashlib.blake2b(f"{seed}/{entity}/{field}".encode(), digest_size=4).digest()
    return ENTITIES[int.from_bytes(digest, "big") % len(ENTITIES)]


@dataclass(frozen=True)
class State:
    """Where a rollout stands."""

    seed: int
    turn: int = 0


class MultiHop(GeneratedEnvironment):
    """Built-in: chained look-ups in a knowledge base, by a search tool whose fields the question's words name.

    A turn is ``<think> WORDS </think> search ENTITY FIELD`` or ``<think> WORDS </think> answer ENTITY``.
    """

    name = "multihop"
    skills = list(FIELDS)

    def make_prompt(self, rng: np.random.Generator, chain: list[str]) -> Prompt:
        start = ENTITIES[rng.integers(len(ENTITIES))]
        return make_prompt(int(rng.integers(2**31)), chain, start)

    def vocabulary(self) -> list[str]:
        grammar = ["the", "of", "?", "<think>", "</think>", "search", "answer", "done", "nothing"]
        return [*grammar, *self.skills, *FIELDS.values(), *ENTITIES]

    def reset(self, prompt: Prompt) -> State:
        return State(seed=int(prompt.metadata["seed"]))

    def step(self, state: State, action: str) -> Transition:
        after = replace(state, turn=state.turn + 1)
        match action.rpartition("</think>")[2].split():
            case ["answer", entity]:
                return Transition(after, stop_reason=StopReason.ANSWERED, answer=entity)
            case ["search", entity, field] if after.turn < self.params.max_turns:
                known = entity in ENTITIES and field in FIELDS.values()
                return Transition(after, observation=look_up(state.seed, entity, field) if known else "nothing")
            case ["search", _, _]:
                return Transition(after, stop_reason=StopReason.MAX_TURNS)
            case _:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)

    def solve(self, prompt: Prompt) -> list[str]:
        entity, turns = str(prompt.metadata["start"]), []
        for relation in reversed(prompt.metadata["relations"]):  # the one nearest to the entity is looked up first
            turns.append(f"<think> {relation} of {entity} </think> search {entity} {FIELDS[relation]}")
            entity = look_up(int(prompt.metadata["seed"]), entity, FIELDS[relation])
        return [*turns, f"<think> done </think> answer {entity}"]


def make_prompt(seed: int, relations: list[str], start: str) -> Prompt:
    """The prompt "the r1 of the r2 of START ?" over the knowledge base of `seed`."""
    answer = start
    for relation in reversed(relations):
        answer = look_up(seed, answer, FIELDS[relation])
    question = " ".join(f"the {relation} of" for relation in relations) + f" {start} ?"
    metadata = {"seed": seed, "relations": relations, "start": start}
    return Prompt(content_id(seed, question, answer), question, answer, metadata)
