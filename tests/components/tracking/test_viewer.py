"""What the page of trees is given: nodes with parents within their tree, counts, and why rollouts were granted."""

from __future__ import annotations

import json
import re

import pytest

from components.tracking.viewer import forest_page, granted_utility, trees
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, Status, StopReason


def node(row: int, parent: int, tree: int = 0, **values) -> Node:
    origin = values.pop("origin", Origin.ROOT if parent < 0 else Origin.FACTUAL)
    return Node(tree, f"p{tree}", row, parent, values.pop("turn", 0), origin, **values)


@pytest.fixture
def forest() -> Forest:
    """Two trees: one with a failure and the continuation that turned it, one whose verifier failed."""
    end = {"stop_reason": StopReason.ANSWERED}
    return Forest(
        [
            node(0, -1, observation="who ?", v_hat=0.6, allocated=2, rule="trace"),
            node(1, 0, turn=1, action="<think> a </think> search ann", observation="bob", v_hat=0.3, allocated=2),
            node(2, 1, turn=2, action="answer cy", reward=0.0, anchor_id=0, sibling=0, **end),
            node(3, 0, turn=1, action="answer eve", reward=0.0, anchor_id=0, sibling=1, **end),
            node(4, 1, turn=2, action="answer bob", reward=1.0, anchor_id=1, origin=Origin.COUNTERFACTUAL, **end),
            node(5, -1, tree=1, observation="</script><b>", allocated=2),
            node(6, 5, tree=1, turn=1, action="answer", status=Status.ERROR, advantage=float("nan"), **end),
        ]
    )


def test_each_tree_counts_its_outcomes_and_numbers_its_own_nodes(forest):
    first, second = trees(forest)
    assert (first["wins"], first["losses"], first["unscored"]) == (1, 2, 0)
    assert (second["wins"], second["losses"], second["unscored"]) == (0, 0, 1)
    assert [n["parent"] for n in first["nodes"]] == [-1, 0, 1, 0, 1]
    assert [n["parent"] for n in second["nodes"]] == [-1, 0]
    assert second["nodes"][1]["status"] == "error"


def test_thought_and_action_are_told_apart(forest):
    turn = trees(forest)[0]["nodes"][1]
    assert (turn["thought"], turn["action"], turn["observation"]) == ("a", "search ann", "bob")


def test_granted_rollouts_come_with_the_chance_of_contrast_they_were_granted_for(forest):
    chance = granted_utility(forest)
    assert chance[0] == pytest.approx(1 - 0.6**2 - 0.4**2)  # Eq. 12 with two factual rollouts
    assert chance[1] == pytest.approx(1 - 0.7**2)  # Eq. 15: the factual rollout failed, two tries to succeed
    assert chance[2] is None
    assert chance[5] is None  # nothing was predicted there


def test_what_is_not_known_is_left_out_and_no_text_can_end_the_script(forest):
    page = forest_page("t", forest)
    data = re.search(r"const forest = (.*);\n", page)[1]
    assert "</script><b>" not in page
    shown = json.loads(data)
    assert shown["trees"][1]["question"] == "</script><b>"
    assert "advantage" not in shown["trees"][1]["nodes"][1]
    assert "v" not in shown["trees"][1]["nodes"][0]


def test_the_page_loads_nothing_from_elsewhere(forest):
    assert (
        re.findall(r"(?:src|href)=|@import|url\(|fetch\(|https?://(?!www\.w3\.org/2000/svg)", forest_page("t", forest))
        == []
    )
