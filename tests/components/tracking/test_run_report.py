"""The page of a run: what it says of budget, calibration and time, and which trees it picks."""

from __future__ import annotations

import json
import re

import pytest

from components.params.root import compose
from components.tracking.run_report import TREES, Digest, run_report
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason


def grown(*trees: tuple[float, list[float]], question: str = "who ?") -> Forest:
    """A tree of factual rollouts for each (v̂, rewards), and a continuation after turn 1 where it has three rewards."""
    nodes: list[Node] = []
    for tree, (v_hat, rewards) in enumerate(trees):
        root, prompt = len(nodes), f"p{tree}"
        nodes.append(Node(tree, prompt, root, -1, 0, Origin.ROOT, observation=question, v_hat=v_hat, allocated=2))
        nodes.append(Node(tree, prompt, root + 1, root, 1, Origin.FACTUAL, root, v_hat=v_hat / 2, action="search"))
        for k, reward in enumerate(rewards):
            parent, anchor = ((root + 1, root), (root, root), (root + 1, root + 1))[k]
            origin, turn = (Origin.FACTUAL, Origin.FACTUAL, Origin.COUNTERFACTUAL)[k], 2 if parent > root else 1
            leaf = Node(tree, prompt, len(nodes), parent, turn, origin, anchor, k % 2, action="answer", reward=reward)
            leaf.stop_reason = StopReason.ANSWERED
            nodes.append(leaf)
    return Forest(nodes)


def a_line(iteration: int, **more: float | None) -> dict:
    return {
        "iteration": iteration,
        "eval/accuracy": 0.25,
        "effective_ratio/prompts": 0.5,
        "tree/flip_rate": None,
        "budget/units": 4.5,
        "budget/unspent": 0.0,
        "budget/active_prompts": 32,
        "budget/leaves": 5,
        "tokens/generated": 100.0,
        "predictor/brier_root": 0.2,
        "time/generate": 3.0,
        "time/update_policy": 1.0,
        "time/iteration": 5.0,
    } | more


def shown(lines: list[dict], forests: dict[int, Forest], accuracy: float | None = 0.75, about=()) -> str:
    digests = [Digest.of(number, forest, {"p0": "gold"}) for number, forest in forests.items()]
    return run_report("r", compose({}), lines, accuracy, digests, about)


def rows(page: str) -> dict[str, list[str]]:
    """Cells of all rows of tables by the first; of equal ones, the first row's."""
    found: dict[str, list[str]] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row)]
        if cells:
            found.setdefault(cells[0], cells[1:])
    return found


def trees(page: str) -> list[dict]:
    return json.loads(re.search(r"const forest = (.*);\n", page)[1])["trees"]


MIXED, DEAD = (0.9, [0.0, 0.0, 1.0]), (0.4, [0.0, 0.0])


def test_budget_goes_from_what_it_bought_to_how_the_prompt_ended():
    table = rows(shown([a_line(0), a_line(1)], {0: grown(MIXED, DEAD), 1: grown(MIXED, DEAD)}))
    assert table["factual rollouts"] == ["8", "88.9%", "50.0%", "50.0%"]
    assert table["continuations after turn 1"] == ["1", "11.1%", "100.0%", "0.0%"]
    assert table["all"] == ["9", "100.0%", "55.6%", "44.4%"]
    assert table["0"] == ["4.5", "0.0", "4.0", "0.5", "55.6%", "44.4%", "32 (25.0%)"]


def test_predictions_of_all_iterations_are_judged_together_at_prompts_and_prefixes_apart():
    page = shown([a_line(0), a_line(1, **{"predictor/brier_root": 0.4})], {0: grown(MIXED), 1: grown(MIXED)})
    table = rows(page)
    assert table["0.90"] == ["0.00", "4"]  # two factual rollouts an iteration; the continuation is none
    assert table["0.45"] == ["0.00", "2"]
    assert page.count("<td>0.90</td>") == page.count("<td>0.45</td>") == 1
    assert table["Brier at prompts"] == ["0.200", "0.400", "0.300"]
    assert table["ECE at prefixes"] == ["–", "–", "–"]


def test_time_by_stage_begins_with_the_slowest_and_adds_up():
    page = shown([a_line(0), a_line(1, **{"time/generate": 9.0, "time/iteration": 11.0})], {})
    table = rows(page)
    assert table["generate"] == ["12.0", "75.0%", "6.00", "9.00 (iteration 1)"]
    assert table["between stages"] == ["2.0", "12.5%", "1.00", "1.00 (iteration 0)"]
    assert "Slowest: generate (75.0%), update policy (12.5%)" in page


def test_ten_trees_with_the_most_surprise_times_contrast_come_first():
    forests = {k: grown(DEAD, (k / 20, [0.0, 0.0, 1.0]), (0.99, [0.0, 0.0])) for k in range(14)}
    found = trees(shown([a_line(k) for k in range(14)], forests))
    assert len(found) == TREES
    assert {tree["prompt"] for tree in found} == {"p1"}  # the others are surprising, and teach the policy nothing
    assert found[0]["iteration"] == 0  # v̂ 0 where a third succeeds
    assert found[0]["surprise"] == pytest.approx(1 / 3, abs=1e-4)
    assert found[0]["contrast"] == pytest.approx(8 / 9, abs=1e-4)
    assert found[0]["command"] == "trace view r --iteration 0 --prompt p1"


def test_a_run_whose_forests_were_removed_says_so_and_shows_the_rest():
    lines = [a_line(k) for k in range(3)]
    assert "were removed" not in shown(lines, {k: grown(MIXED) for k in range(3)})
    some = shown(lines, {2: grown(MIXED)})
    assert "The forests of 2 of the 3 iterations were removed (run.keep_forests)" in some
    assert rows(some)["0"][2] == "–"
    none = shown(lines, {})
    assert "3 of the 3 iterations were removed" in none
    assert rows(none)["generate"][0] == "9.0"


def test_an_unfinished_run_without_an_evaluation_is_shown():
    page = shown([a_line(0, **{"eval/accuracy": None})], {0: grown(MIXED)}, accuracy=None)
    assert "1 of 16, not finished" in page
    assert rows(page)["accuracy on held-out prompts"] == ["–"]


def test_facts_parameters_contrast_and_gold_answers_are_there():
    page = shown([a_line(0, **{"rollouts/trained": 0.0})], {0: grown(MIXED, DEAD)}, about=[("commit", "abc")])
    table = rows(page)
    assert table["commit"] == ["abc"]
    assert table["accuracy on held-out prompts"] == ["0.250 → 0.750, best 0.750"]
    assert "Nothing was learnt: no group has contrast" in page
    assert "root_units: 128" in page
    assert "Whether stage 2 can pay" not in page  # prefixes have predictions
    assert table["at the prompt"] == ["4", "4", "0.000"]  # the continuation, which succeeded, is no fresh sample there
    assert table["one more from the prompt, in a tree without contrast"][2] == "0.000"
    assert trees(page)[0]["gold"] == "gold"


def test_figures_are_text_in_the_pages_colours_and_nothing_is_loaded():
    page = shown([a_line(0), a_line(1)], {0: grown(MIXED), 1: grown(MIXED)})
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(titles) == page.count('<svg class="plot"') == len(set(titles)) > 8
    assert titles[0] == "Accuracy on held-out prompts"
    for picture in re.findall(r"<svg class=.plot.*?</svg>", page, re.DOTALL):
        assert len(re.findall(r"<text", picture)) >= 5  # numbers on both axes, and what lies across
    assert re.findall(r"src=|[^:]href=\"(?!#)|@import|url\((?!#)|https?://(?!www\.w3\.org/)", page) == []
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_text_of_a_rollout_is_no_markup():
    forest = grown(MIXED, question="</script><b>")
    forest.nodes[0].rule = "<i>"
    page = shown([a_line(0)], {0: forest})
    assert "<b>" not in page
    assert "<i>" not in page
    assert trees(page)[0]["question"] == "</script><b>"


def test_forty_iterations_with_long_texts_take_less_than_two_megabytes():
    forests = {k: grown(*[(0.1 * (k % 9), [0.0, 1.0, 1.0])] * 64, question="x" * 100_000) for k in range(40)}
    page = shown([a_line(k) for k in range(40)], forests)
    assert len(page.encode()) < 2e6
    assert trees(page)[0]["question"].endswith("x …")
