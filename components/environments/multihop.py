"""Multi-hop look-ups: "the mother of the boss of ann ?", answered by searching a knowledge base one hop at a time.

Every prompt brings a knowledge base of its own, so nothing can be memorised but the skill: the order of the hops, and
which field of the search tool each relation word of the question names. The knowledge base is a function of the
prompt's seed rather than a stored table: field f of entity e is a hash of (seed, e, f). A search with the wrong field
therefore returns a wrong but plausible entity, as a real search would.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from components.environments.base import Chat, Prompt, Transition
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
RELATIONS = list(FIELDS)


def look_up(seed: int, entity: str, field: str) -> str:
    """The knowledge base: which entity stands in `field` of `entity`."""
    digest = hashlib.blake2b(f"{seed}/{entity}/{field}".encode(), digest_size=4).digest()
    return ENTITIES[int.from_bytes(digest, "big") % len(ENTITIES)]


@dataclass(frozen=True)
class State:
    """Where a rollout stands."""

    seed: int
    turn: int = 0


@dataclass(frozen=True)
class MultiHop:
    """The environment.

    A turn is ``<think> WORDS </think> search ENTITY FIELD`` or ``<think> WORDS </think> answer ENTITY``.
    """

    max_turns: int = 6

    def chat(self, prompt: Prompt) -> Chat:
        return Chat((("user", prompt.question),))

    def reset(self, prompt: Prompt) -> State:
        return State(seed=int(prompt.metadata["seed"]))

    def step(self, state: State, action: str) -> Transition:
        after = replace(state, turn=state.turn + 1)
        match action.rpartition("</think>")[2].split():
            case ["answer", entity]:
                return Transition(after, stop_reason=StopReason.ANSWERED, answer=entity)
            case ["search", entity, field] if after.turn < self.max_turns:
                known = entity in ENTITIES and field in FIELDS.values()
                return Transition(after, observation=look_up(state.seed, entity, field) if known else "nothing")
            case ["search", _, _]:
                return Transition(after, stop_reason=StopReason.MAX_TURNS)
            case _:
                return Transition(after, stop_reason=StopReason.MALFORMED_ACTION)


def solve(prompt: Prompt) -> list[tuple[str, str | None]]:
    """The gold path: (turn text, observation) pairs; the last observation is None."""
    entity, chain = str(prompt.metadata["start"]), list(prompt.metadata["relations"])
    turns: list[tuple[str, str | None]] = []
    for relation in reversed(chain):  # the relation nearest to the entity is looked up first
        found = look_up(int(prompt.metadata["seed"]), entity, FIELDS[relation])
        turns.append((f"<think> {relation} of {entity} </think> search {entity} {FIELDS[relation]}", found))
        entity = found
    return [*turns, (f"<think> done </think> answer {entity}", None)]
