"""Multi-turn rollouts: token-exact prefixes, masks made as tokens are appended, typed stops, exact branching."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from components.environments.base import replay
from components.environments.multihop import MultiHop, make_prompt, solve
from components.errors import UserError
from components.policy.engines.base import Completion, EngineParams, Request
from components.policy.renderer import Renderer
from components.policy.rollout import Sampler, Start
from components.policy.warmup import demonstrate
from components.seeds import derive_seed
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason

PROMPT = make_prompt(7, ["mother", "boss", "friend"], "ann")


@pytest.fixture(scope="module")
def renderer(random_policy: Path) -> Renderer:
    return Renderer.load(random_policy)


class Scripted:
    """An engine that says what it is told, turn by turn, and records its requests."""

    batch_size = 8

    def __init__(self, renderer: Renderer, turns: list[str], cut_last: bool = False) -> None:
        self.renderer, self.turns, self.cut_last = renderer, turns, cut_last
        self.requests: list[Request] = []

    def load(self, policy: Path) -> None: ...

    def generate(self, requests: list[Request]) -> list[Completion]:
        self.requests += requests
        text = self.turns[min(len(self.requests) - 1, len(self.turns) - 1)]
        ids = self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        stopped = not (self.cut_last and len(self.requests) == len(self.turns))
        ids = [*ids, self.renderer.eos_id] if stopped else ids
        return [Completion(list(ids), [-0.5] * len(ids), stopped) for _ in requests]


def roll(
    renderer: Renderer, turns: list[str], environment=None, settings: EngineParams | None = None, **engine
) -> list[Node]:
    environment = environment or MultiHop(6)
    sampler = Sampler(Scripted(renderer, turns, **engine), renderer, environment, settings or EngineParams(), 3)
    ids = renderer.prompt_ids(MultiHop().chat(PROMPT))
    root = Node(
        0,
        PROMPT.prompt_id,
        0,
        -1,
        0,
        Origin.ROOT,
        token_ids=ids,
        is_action=[False] * len(ids),
        logprobs=[np.nan] * len(ids),
    )
    start = Start(PROMPT, 0, 0, 0, 0, ids, environment.reset(PROMPT), 11)
    return [root, *sampler.sample([start], 1)]


def test_gold_path_is_sampled_observed_and_answered(renderer):
    nodes = roll(renderer, [turn for turn, _ in solve(PROMPT)])
    assert [n.observation for n in nodes[1:-1]] == [o for _, o in solve(PROMPT)[:-1]]
    assert (nodes[-1].stop_reason, nodes[-1].observation) == (StopReason.ANSWERED, PROMPT.answer)
    assert [n.parent_id for n in nodes] == [-1, 0, 1, 2, 3]
    assert all(n.policy_version == 3 for n in nodes[1:])


def test_deltas_concatenate_to_the_sequence_of_a_demonstration(renderer):
    nodes = roll(renderer, [turn for turn, _ in solve(PROMPT)])
    ids, is_action = demonstrate(PROMPT, solve, renderer)
    assert Forest(nodes).prefix_ids(4) == ids
    assert [a for n in nodes for a in n.is_action] == is_action


def test_observations_and_prompt_are_not_trained_on(renderer):
    """The mask is made when tokens are appended: its sum is the number of sampled tokens."""
    nodes = roll(renderer, [turn for turn, _ in solve(PROMPT)])
    for node in nodes:
        assert [np.isfinite(x) for x in node.logprobs] == node.is_action
    sampled = sum(len(renderer.tokenizer(t, add_special_tokens=False)["input_ids"]) + 1 for t, _ in solve(PROMPT))
    assert sum(sum(n.is_action) for n in nodes) == sampled


def test_each_turn_is_asked_with_the_exact_history(renderer):
    environment = MultiHop(6)
    engine = Scripted(renderer, [turn for turn, _ in solve(PROMPT)])
    ids = renderer.prompt_ids(MultiHop().chat(PROMPT))
    Sampler(engine, renderer, environment, EngineParams(), 0).sample(
        [Start(PROMPT, 0, 0, 0, 0, ids, environment.reset(PROMPT), 5)], 1
    )
    for before, after in zip(engine.requests, engine.requests[1:], strict=False):
        assert after.token_ids[: len(before.token_ids)] == before.token_ids
    assert len({r.seed for r in engine.requests}) == len(engine.requests)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        (["<think> done </think> dance"], StopReason.MALFORMED_ACTION),
        (["search ann"], StopReason.MALFORMED_ACTION),
        ([""], StopReason.MALFORMED_ACTION),
        (["<think> mother of ann </think> search ann mat"] * 9, StopReason.MAX_TURNS),
    ],
)
def test_what_a_policy_writes_is_a_stop_reason_never_an_exception(renderer, turns, reason):
    last = roll(renderer, turns)[-1]
    assert (last.stop_reason, last.status) == (reason, Status.OK)


def test_truncated_call_is_never_parsed(renderer):
    """ "answer ann" cut before its end token may be the start of something else."""
    last = roll(renderer, ["<think> done </think> answer ann"], cut_last=True)[-1]
    assert last.stop_reason == StopReason.LENGTH
    assert last.observation is None


def test_rollout_longer_than_max_tokens_is_cut(renderer):
    settings = EngineParams(max_tokens=len(renderer.prompt_ids(MultiHop().chat(PROMPT))) + 12)
    nodes = roll(renderer, ["<think> mother of ann </think> search ann mat"] * 3, settings=settings)
    assert nodes[-1].is_terminal


def test_failing_tool_is_an_error_status_and_spares_the_others(renderer):
    class Broken(MultiHop):
        def step(self, state, action):
            raise ConnectionError("tool is away")

    last = roll(renderer, ["<think> mother of ann </think> search ann mat"], environment=Broken())[-1]
    assert (last.stop_reason, last.status, last.reward) == (StopReason.TOOL_ERROR, Status.ERROR, None)


def test_branching_restores_the_world_and_leaves_the_original_alone():
    environment = MultiHop(6)
    actions = [turn for turn, _ in solve(PROMPT)]
    at_two = replay(environment, PROMPT, actions[:2])
    left = environment.step(at_two, actions[2])
    right = environment.step(at_two, "<think> x </think> search zoe pat")
    assert at_two.turn == 2
    assert left.state.turn == right.state.turn == 3
    assert left.observation == solve(PROMPT)[2][1]


def test_seeds_differ_by_run_iteration_anchor_and_sibling():
    seeds = {derive_seed(r, i, a, s) for r in range(3) for i in range(3) for a in "xyz" for s in range(3)}
    assert len(seeds) == 81
    assert derive_seed(1, 2, "x", 3) == derive_seed(1, 2, "x", 3)
    assert all(0 <= s < 2**63 for s in seeds)


def test_template_that_rewrites_history_is_refused(random_policy):
    """Qwen3's template drops earlier thoughts; a prefix would then not be the sequence that was sampled."""
    tokenizer = AutoTokenizer.from_pretrained(random_policy)
    tokenizer.chat_template = (
        "{% for m in messages %}"
        "{{ m.role + (' ' + m.content if m.role != 'assistant' or loop.last else ' gone') + ' <|end|> ' }}"
        "{% endfor %}"
    )
    with pytest.raises(UserError, match="rewrites earlier turns"):
        Renderer(tokenizer).observation_ids("bob")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ messages[0].content }}", "does not end a turn"),
        ("{% for %}", "usable tokenizer"),
    ],
)
def test_unusable_chat_template_is_one_clear_error(random_policy, tmp_path, template, message):
    tokenizer = AutoTokenizer.from_pretrained(random_policy)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    shutil.copy(random_policy / "config.json", tmp_path)
    with pytest.raises(UserError, match=message):
        Renderer.load(tmp_path)


def test_end_token_that_the_engine_would_not_stop_at_is_refused(random_policy, tmp_path):
    """Every rollout would be cut, and nothing ever learned."""
    shutil.copytree(random_policy, tmp_path / "p")
    config = json.loads((tmp_path / "p" / "config.json").read_text())
    (tmp_path / "p" / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    with pytest.raises(UserError, match="eos_token_id=0"):
        Renderer.load(tmp_path / "p")


def test_lengths_that_differ_name_the_node():
    with pytest.raises(ValueError, match=r"node 4 of tree 2 .*lengths 3, 3 and 2"):
        Node(2, "p", 4, 1, 1, Origin.FACTUAL, token_ids=[1, 2, 3], is_action=[True] * 3, logprobs=[0.0, 0.0])


def test_nodes_do_not_share_their_lists():
    a, b = (Node(0, "p", i, i - 1, i, Origin.ROOT) for i in range(2))
    a.token_ids.append(1)
    assert b.token_ids == []


def test_forest_survives_parquet_and_refuses_broken_trees(renderer, tmp_path):
    from components.storage import read_parquet, write_parquet
    from components.tree.schema import NODE_SCHEMA

    forest = Forest(roll(renderer, [turn for turn, _ in solve(PROMPT)]))
    write_parquet(tmp_path / "f.parquet", forest.to_table())
    again = Forest.from_table(read_parquet(tmp_path / "f.parquet", NODE_SCHEMA))
    assert repr(again.to_table().to_pylist()) == repr(forest.to_table().to_pylist())  # repr: NaN differs from itself
    with pytest.raises(ValueError, match="another tree"):
        Forest([forest.nodes[0], replace(forest.nodes[1], tree_id=1)])
    with pytest.raises(ValueError, match="earlier row"):
        Forest([replace(forest.nodes[0]), replace(forest.nodes[1], parent_id=5)])


def test_c37_no_second_beginning_token(random_policy, tmp_path):
    """A tokenizer that puts a beginning token before every text, and a template that writes it: it stands once."""
    tokenizer = AutoTokenizer.from_pretrained(random_policy)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", tokenizer.convert_tokens_to_ids("<|user|>"))]
    )
    assert tokenizer("the")["input_ids"][0] == tokenizer.convert_tokens_to_ids("<|user|>")
    ids = Renderer(tokenizer).prompt_ids(MultiHop().chat(PROMPT))
    assert ids.count(tokenizer.convert_tokens_to_ids("<|user|>")) == 1
