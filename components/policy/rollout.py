"""Multi-turn rollouts: the engine samples a turn, the environment answers, the observation's tokens are appended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from components.environments.base import Environment, Prompt, replay
from components.errors import UserError
from components.policy import loop
from components.policy.engines.base import AsyncEngine, Completion, Engine, EngineParams, Request
from components.policy.faults import checked, copy_of, failed, fault_of
from components.seeds import derive_seed
from components.tree.schema import Node, Origin, Status, StopReason
from components.workers.pool import PerProcess

if TYPE_CHECKING:
    from components.policy.renderer import Renderer

TOOLS = 64  # environment steps at the same time, in threads
_tools = PerProcess(lambda: ThreadPoolExecutor(TOOLS, "environment"))

T = TypeVar("T")

logger = logging.getLogger("trace")


@dataclass
class Start:
    """Where one rollout begins: a root or a visited prefix.

    Attributes:
        prompt: The task instance.
        tree_id, anchor_id: Tree, and the node whose budget pays.
        sibling: Index of this rollout among those paid for at the anchor.
        turn: Turn of the anchor; 0 at the root.
        token_ids: Exact history up to the anchor.
        state: The environment's state there, or the exception that kept it from being made (`Sampler.world`).
        seed: Seed of the rollout; each turn derives its own.
    """

    prompt: Prompt
    tree_id: int
    anchor_id: int
    sibling: int
    turn: int
    token_ids: list[int]
    state: Any
    seed: int


class Sampler:
    """Samples rollouts from anchors.

    Args:
        engine: Who samples; its policy is loaded.
        renderer: The same policy's renderer.
        environment: The task.
        settings: Limits on tokens.
        policy_version: Number of updates behind the engine's weights.
    """

    def __init__(
        self, engine: Engine, renderer: Renderer, environment: Environment, settings: EngineParams, policy_version: int
    ) -> None:
        self.engine, self.renderer, self.environment = engine, renderer, environment
        self.settings, self.policy_version = settings, policy_version
        self._is_pure = False  # nothing has shown yet that the environment leaves states alone

    def world(self, prompt: Prompt, actions: Sequence[str] = ()) -> Any:
        """The environment's state after some actions, or the exception that there is in its place.

        A rollout that starts from an exception is a leaf with status error.
        """
        try:
            return replay(self.environment, prompt, list(actions))
        except Exception as error:  # a fault of the environment concerns the rollouts from here alone
            return error

    def usage(self) -> dict[str, float]:
        """What the engine counted since its policy was loaded; see `Engine`."""
        return {
            "prompt_tokens": float(self.engine.prompt_tokens),
            "cached_tokens": float(self.engine.cached_tokens),
        }

    def sample(
        self, starts: list[Start], first_id: int, progress: Callable[[int], None] = lambda done: None
    ) -> list[Node]:
        """Samples one rollout per start, each a chain of new nodes below its anchor.

        Args:
            starts: Where the rollouts begin, in order.
            first_id: Id of the first new node; the others follow.
            progress: Called with the number of rollouts that ended since the last call.

        Returns:
            The new nodes, rollout by rollout, parents before children; terminal ones without a reward yet.
        """
        chains: list[list[Node]] = [[] for _ in starts]
        if isinstance(self.engine, AsyncEngine):
            loop.run(loop.all_of(map(partial(self._sample_one, self.engine, progress), starts, chains)))
        else:
            for begin in range(0, len(starts), self.engine.batch_size):
                self._sample_batch(starts[begin : begin + self.engine.batch_size], chains[begin:], progress)
        faults = [chain[-1].error for chain in chains if chain[-1].status != Status.OK]
        if faults:
            logger.warning("%d of %d rollouts ended in a fault; the first: %s", len(faults), len(starts), faults[0])
        nodes: list[Node] = []
        for chain, start in zip(chains, starts, strict=True):
            parent = start.anchor_id
            for node in chain:
                node.node_id, node.parent_id = first_id + len(nodes), parent
                parent = node.node_id
                nodes.append(node)
        return nodes

    def _sample_batch(self, starts: list[Start], chains: list[list[Node]], progress: Callable[[int], None]) -> None:
        live = [
            (start, chain, list(start.token_ids), start.state) for start, chain in zip(starts, chains, strict=False)
        ]
        while live:
            requests = [self._request(start, len(chain), ids, state) for start, chain, ids, state in live]
            turns = [
                partial(self._take_turn, start, len(chain), request, completion, state)
                for request, completion, (start, chain, _, state) in zip(
                    requests, self.engine.generate(requests), live, strict=True
                )
            ]
            going = []
            for (node, state), (start, chain, ids, _) in zip(self._at_once(turns), live, strict=True):
                chain.append(node)
                if not node.is_terminal:
                    going.append((start, chain, ids + node.token_ids, state))
            progress(len(live) - len(going))
            live = going

    async def _sample_one(
        self, engine: AsyncEngine, progress: Callable[[int], None], start: Start, chain: list[Node]
    ) -> None:
        """One rollout, turn by turn; its environment works in a thread, so a slow tool delays no other rollout."""
        ids, state = list(start.token_ids), start.state
        while not chain or not chain[-1].is_terminal:
            request = self._request(start, len(chain), ids, state)
            turn = partial(self._take_turn, start, len(chain), request, await engine.sample(request), state)
            node, state = await asyncio.get_running_loop().run_in_executor(_tools.get(), turn)
            chain.append(node)
            ids = ids + node.token_ids
        progress(1)

    def _request(self, start: Start, number: int, ids: list[int], state: Any) -> Request:
        limit = max(0, min(self.settings.max_turn_tokens, self.settings.max_tokens - len(ids)))
        limit = 0 if isinstance(state, Exception) else limit
        return Request(ids, derive_seed(start.seed, start.turn + number), limit, start.tree_id)

    def _at_once(self, turns: Sequence[Callable[[], T]]) -> list[T]:
        """What the turns return, in order; as many at a time as the environment can take."""
        if self.environment.parallel_steps == 1:
            return [turn() for turn in turns]
        with ThreadPoolExecutor(self.environment.parallel_steps) as threads:
            return [done.result() for done in [threads.submit(turn) for turn in turns]]

    def _take_turn(
        self, start: Start, number: int, request: Request, completion: Completion, state: Any
    ) -> tuple[Node, Any]:
        """Turns a completion into a node, with the observation appended where the rollout goes on."""
        action = self.renderer.decode(completion.token_ids)
        node = Node(
            tree_id=start.tree_id,
            prompt_id=start.prompt.prompt_id,
            node_id=0,
            parent_id=0,
            turn=start.turn + number + 1,
            origin=Origin.FACTUAL if start.turn == 0 else Origin.COUNTERFACTUAL,
            anchor_id=start.anchor_id,
            sibling=start.sibling,
            token_ids=completion.token_ids,
            is_action=[True] * len(completion.token_ids),
            logprobs=completion.logprobs,
            action=action,
            policy_version=self.policy_version,
            seed=request.seed,
        )
        fault = state if isinstance(state, Exception) else fault_of(completion)
        if fault is not None:
            return failed(node, fault), state
        if not completion.stopped:  # cut: never parsed, since half an action may read as another one
            node.stop_reason = StopReason.LENGTH
            return node, state
        try:
            transition = checked(self._step(state, action))
            seen: Sequence[int] = ()
            if not transition.done:
                seen = self.renderer.observation_ids(transition.observation or "", transition.role)
        except UserError:
            raise
        except Exception as error:  # a fault of the environment concerns this rollout alone, and is no wrong answer
            return failed(node, error), state
        if transition.done:
            node.stop_reason = transition.stop_reason
            node.answer = transition.answer if transition.stop_reason == StopReason.ANSWERED else None
            return node, transition.state
        node.observation = transition.observation
        node.token_ids = [*node.token_ids, *seen]
        node.is_action = node.is_action + [False] * len(seen)
        node.logprobs = node.logprobs + [float("nan")] * len(seen)
        return node, transition.state

    def _step(self, state: Any, action: str) -> Any:
        """The environment's transition; looks until the first that goes on whether it leaves its state alone."""
        before = None if self._is_pure else copy_of(state)
        transition = self.environment.step(state, action)
        if before is not None and before != state:
            raise UserError(
                f"{type(self.environment).__name__}.step changes the state that it is given; it must return a new one, "
                "since all rollouts from a prefix begin with the same"
            )
        self._is_pure = self._is_pure or not getattr(transition, "done", True)
        return transition
