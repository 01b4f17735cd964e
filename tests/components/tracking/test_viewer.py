"""What the page of trees is given: nodes with parents within their tree, counts, flips, beliefs, and tokens."""

from __future__ import annotations

import json
import re

import pytest

from components.tracking.viewer import forest_page, granted_utility, trees
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason


def node(row: int, parent: int, tree: int = 0, **values) -> Node:
    origin = values.pop("origin", Origin.ROOT if parent < 0 else Origin.FACTUAL)
    ids = values.pop("ids", [])
    tokens = {
        "token_ids": ids,
        "is_action": [i > 0 for i in ids],
        "logprobs": [-0.5 * i if i > 0 else float("nan") for i in ids],
    }
    return Node(tree, f"p{tree}", row, parent, values.pop("turn", 0), origin, **tokens, **values)


@pytest.fixture
def forest() -> Forest:
    """Two trees: one with two failures, one of which two continuations turned; and one that could not be verified.

    Node 7 has the same history as node 1. Tokens above 0 were sampled.
    """
    end = {"stop_reason": StopReason.ANSWERED}
    new = {"origin": Origin.COUNTERFACTUAL, "turn": 2, "anchor_id": 1}
    return Forest(
        [
            node(0, -1, observation="who ?", v_hat=0.6, concentration=3.0, allocated=2, rule="trace", ids=[-9, -1]),
            node(
                1,
                0,
                turn=1,
                action="<think> a </think> search ann",
                observation="bob",
                v_hat=0.3,
                allocated=2,
                ids=[1, 2, -3],
            ),
            node(2, 1, turn=2, action="answer cy", answer="cy", reward=0.0, anchor_id=0, sibling=0, ids=[4], **end),
            node(3, 0, turn=1, action="answer eve", answer="eve", reward=0.0, anchor_id=0, sibling=1, ids=[5], **end),
            node(4, 1, action="answer bob", answer="bob", reward=1.0, sibling=0, **new, **end),
            node(5, 1, action="answer cy", reward=0.0, sibling=1, **new, **end),
            node(6, 0, turn=1, ids=[1, 2, -3], anchor_id=0, sibling=2, advantage=0.5),
            node(7, 6, turn=2, action="answer bob", reward=1.0, anchor_id=0, sibling=2, **end),
            node(8, -1, tree=1, observation="</script><b>", allocated=2, ids=[-9, -2]),
            node(9, 8, tree=1, turn=1, status=Status.ERROR, error="OSError: away", advantage=float("nan"), **end),
        ]
    )


def test_each_tree_counts_its_outcomes_and_numbers_its_own_nodes(forest):
    first, second = trees(forest, {"p0": "bob"})
    assert (first["wins"], first["losses"], first["unscored"], first["gold"]) == (2, 3, 0, "bob")
    assert (second["wins"], second["losses"], second["unscored"], second["gold"]) == (0, 0, 1, "")
    assert [n["parent"] for n in first["nodes"]] == [-1, 0, 1, 0, 1, 1, 0, 6]
    assert [n["parent"] for n in second["nodes"]] == [-1, 0]
    assert (second["nodes"][1]["status"], second["nodes"][1]["error"]) == ("error", "OSError: away")


def test_thought_action_and_answer_are_told_apart(forest):
    turns = trees(forest)[0]["nodes"]
    assert (turns[1]["thought"], turns[1]["action"], turns[1]["observation"]) == ("a", "search ann", "bob")
    assert turns[2]["answer"] == "cy"


def test_granted_rollouts_come_with_the_chance_of_contrast_they_were_granted_for(forest):
    forest.nodes[0].concentration = None
    chance = granted_utility(forest)
    assert chance[0] == pytest.approx(1 - 0.6**2 - 0.4**2)  # Eq. 12 with two factual rollouts
    assert chance[1] == pytest.approx(1 - 0.7**2)  # Eq. 15: the factual rollout failed, two tries to succeed
    assert chance.keys() == {0, 1}  # at node 8 nothing was predicted


def test_a_prefix_says_how_many_continuations_flipped_it_and_a_leaf_that_it_did(forest):
    tree = trees(forest)[0]
    assert tree["flips"] == 1
    assert tree["nodes"][1]["flips"] == [
        1,
        2,
    ]  # the extra root rollout that passed here later is no reason not to count
    assert [i for i, n in enumerate(tree["nodes"]) if n.get("flipped")] == [4]


def test_a_belief_is_shown_before_and_after_and_at_every_node_with_that_history(forest):
    forest.nodes[1].concentration = 4.0
    turns = trees(forest)[0]["nodes"]
    assert (turns[0]["v"], turns[0]["sd"]) == (0.6, pytest.approx((0.6 * 0.4 / 4) ** 0.5, abs=1e-3))
    mean, deviation, rollouts = turns[0]["after"]  # two failures and a success, sampled from the root
    assert (mean, rollouts) == (pytest.approx((0.6 * 3 + 1) / 6, abs=1e-3), 3)
    assert deviation < turns[0]["sd"]
    assert (turns[6]["same"], turns[6]["v"], turns[6]["advantage"]) == (1, 0.3, 0.5)
    assert (
        turns[6]["after"] == turns[1]["after"] == [pytest.approx((0.3 * 4 + 2) / 8, abs=1e-3), turns[1]["after"][1], 4]
    )


def shown(page: str) -> dict:
    return json.loads(re.search(r"const forest = (.*);\n", page)[1])


def test_tokens_and_the_exact_prompt_are_there_where_a_tokenizer_is(forest):
    """A tokenizer that writes a space between words: what a token adds depends on the one before it."""
    data = shown(forest_page("t", forest, decode=lambda ids: " ".join(f"w{i}" for i in ids)))
    assert data["head"] == "w-9"  # with which all prompts begin
    assert [tree["exact"] for tree in data["trees"]] == [" w-1", " w-2"]
    turn = data["trees"][0]["nodes"][1]
    assert (turn["pieces"], turn["logprobs"]) == (["w1", " w2", " w-3"], [-0.5, -1.0, None])
    assert "pieces" not in shown(forest_page("t", forest))["trees"][0]["nodes"][1]


def test_a_page_stores_no_more_tokens_than_it_may_and_begins_with_the_flipped_trees(forest, monkeypatch):
    monkeypatch.setattr("components.tracking.viewer.TOKENS", 11)
    assert [("exact" in t) for t in shown(forest_page("t", forest, decode=str))["trees"]] == [True, False]


def test_what_is_not_known_is_left_out_and_no_text_can_end_the_script(forest):
    page = forest_page("t", forest, others=[(3, "../<b>")])
    assert "<b>" not in page
    data = shown(page)
    assert data["trees"][1]["question"] == "</script><b>"
    assert "advantage" not in data["trees"][1]["nodes"][1]
    assert "v" not in data["trees"][1]["nodes"][0]


def test_the_page_loads_nothing_from_elsewhere(forest):
    page = forest_page("t", forest)
    assert re.findall(r"(?:src|href)=|@import|url\(|fetch\(|https?://(?!www\.w3\.org/2000/svg)", page) == []
