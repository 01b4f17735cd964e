"""The page of trees in a real browser, without a network; skipped where no Chromium is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from components.params.root import compose
from components.storage import write_sealed, write_text
from components.tracking.viewer import forest_page
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason
from flows.cli import app
from tasks.inputs import write_forest


def a_forest(count: int) -> Forest:
    """Trees of two rollouts with two turns each; tree k fails throughout where k is a multiple of 3, else is mixed.

    A continuation after the first turn of tree 4's failure succeeds.
    """
    nodes: list[Node] = []

    def add(tree: int, parent: int, turn: int, origin: str, anchor: int = -1, sibling: int = -1, **more) -> int:
        nodes.append(Node(tree, f"p{tree}", len(nodes), parent, turn, origin, anchor, sibling, **more))
        return len(nodes) - 1

    end = {"stop_reason": StopReason.ANSWERED, "action": "answer", "answer": "bob"}
    for tree in range(count):
        asked = {"observation": f"question {tree}", "v_hat": tree % 10 / 10, "allocated": 2, "token_ids": [1, 2]}
        root = add(tree, -1, 0, Origin.ROOT, **asked, is_action=[False] * 2, logprobs=[float("nan")] * 2)
        for k in range(2):
            turn = {"token_ids": [3 + k, 5], "is_action": [True, False], "logprobs": [-1.0, float("nan")]}
            prefix = add(tree, root, 1, Origin.FACTUAL, root, k, action="search", observation="seen", **turn)
            add(tree, prefix, 2, Origin.FACTUAL, root, k, reward=float(k and tree % 3 > 0), **end)
            if tree == 4 and k == 0:
                add(tree, prefix, 2, Origin.COUNTERFACTUAL, prefix, 0, reward=1.0, **end)
    return Forest(nodes)


@pytest.fixture(scope="module")
def page_of_a_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trees.html"
    page = forest_page("A thousand trees", a_forest(1000), {"p4": "eve"}, lambda ids: " ".join(f"t{i}" for i in ids))
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture
def page(browser, page_of_a_thousand) -> Iterator:
    shown = browser.new_page()
    faults: list[str] = []
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.goto(page_of_a_thousand.as_uri())
    yield shown
    assert faults == []
    shown.close()


def test_a_thousand_trees_are_listed_with_only_those_in_sight_made(page):
    assert page.inner_text("#count") == "1000 of 1000 trees"
    assert 5 < page.locator(".item").count() < 60
    page.evaluate("document.getElementById('list').scrollTop = 1e9")
    page.wait_for_selector(".item >> nth=3")
    last = page.evaluate("[...document.querySelectorAll('.item')].at(-1).getBoundingClientRect().bottom")
    assert last <= page.viewport_size["height"] + 1


def test_filters_by_outcome_surprise_size_and_text(page):
    page.select_option("#outcome", "losses")
    assert page.inner_text("#count") == "334 of 1000 trees"
    page.fill("#surprise", "0.9")
    assert page.inner_text("#count") == "34 of 1000 trees"  # multiples of 3 that end in 9
    page.fill("#size", "3")
    assert "No tree passes" in page.inner_text("#tree")
    page.fill("#size", "2")
    page.fill("#find", "question 99")
    assert page.inner_text("#count") == "2 of 1000 trees"  # 99 and 999


def test_keys_go_through_trees_and_turns(page):
    page.keyboard.press("s")
    page.keyboard.press("s")
    page.keyboard.press("s")  # as sampled
    page.evaluate("pick(shown[0])")
    assert page.inner_text("main h2") == "question 0"
    page.keyboard.press("Enter")
    assert page.inner_text("pre") == "t1 t2"  # the exact prompt
    page.keyboard.press("Enter")
    assert page.locator("pre").count() == 0
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.inner_text("main h2") == "question 1"
    page.keyboard.press("ArrowDown")
    assert page.inner_text("li > div.on").startswith("search")
    page.keyboard.press("Enter")
    assert page.inner_text("li > div.on pre") == "t3 t5"
    assert page.locator("pre .drawn").get_attribute("title") == "log p -1.00, p 0.368"
    page.keyboard.press("/")
    page.keyboard.type("question 7j")
    assert page.inner_text("#count") == "0 of 1000 trees"  # in the field, letters are text
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1


def test_the_tree_with_a_flip_comes_first_and_shows_outcomes_grants_beliefs_and_the_gold_answer(page):
    assert page.inner_text("main h2") == "question 4"
    page.select_option("#outcome", "flipped")
    assert page.inner_text("#count") == "1 of 1000 trees"
    text = page.inner_text("main")
    for words in (
        "granted 2 factual rollouts for 0.48",
        "gold answer eve",
        "flipped by 1 of 1",
        "✗ answered “bob”",
        "v̂ 0.40",
    ):
        assert words in text
    assert text.count("✓ answered") == 2
    assert page.locator("svg g.node").count() == 6
    assert page.locator("svg .ring").count() == 1


def test_a_phone_has_room_for_list_and_tree(browser, page_of_a_thousand):
    shown = browser.new_page(viewport={"width": 400, "height": 700})
    shown.goto(page_of_a_thousand.as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") == 400
    assert shown.evaluate("by('tree').clientWidth") == 400
    assert shown.evaluate("by('tree').getBoundingClientRect().height") > 350
    assert not shown.locator("#find").is_visible()
    shown.keyboard.press("/")
    assert shown.locator("#find").is_visible()
    shown.close()


def test_an_address_names_the_tree_that_is_shown_first(browser, page_of_a_thousand):
    shown = browser.new_page(color_scheme="dark")
    shown.goto(page_of_a_thousand.as_uri() + "#p42")
    assert shown.inner_text("main h2") == "question 42"
    ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.close()
    assert ground == "rgb(20, 24, 28)"  # dark where the system is


def a_run(folder: Path) -> None:
    write_sealed(folder / "runs/r/manifest.json", {"run_id": "r"})
    write_text(folder / "runs/r/params.yaml", yaml.safe_dump(compose({}).model_dump()))
    for number in (0, 1):
        write_forest(folder / f"runs/r/iterations/{number:04d}/forest.parquet", a_forest(3 + number))


def view(folder: Path, *arguments: str):
    return CliRunner().invoke(app, ["view", "r", "--no-open", "--runs-dir", str(folder / "runs"), *arguments])


def test_command_writes_the_newest_forest_and_says_where(tmp_path, monkeypatch, caplog):
    a_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = view(tmp_path, "--prompt", "p2")
    page = tmp_path / "runs/r/iterations/0001/trees.html"
    assert done.exit_code == 0, done.output
    assert f"4 trees: {page.as_uri()}#p2" in done.output
    assert "question 3" in page.read_text()
    assert "no data set in data/multihop: pages do not show gold answers" in caplog.text
    assert not Path("data").exists()  # nothing is made only to be shown


def test_pages_of_all_iterations_are_linked_to_each_other(tmp_path):
    a_run(tmp_path)
    assert view(tmp_path, "--all", "--iteration", "0").exit_code == 0
    for number in (0, 1):
        page = (tmp_path / f"runs/r/iterations/{number:04d}/trees.html").read_text()
        assert [f'href="../{k:04d}/trees.html"' in page for k in (0, 1)] == [True, True]
    view(tmp_path, "--output", str(elsewhere := tmp_path / "x.html"))
    assert "href=" not in elsewhere.read_text()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--all", "--output", "x.html"), "leave out --output x.html"),
        (("--iteration", "7"), "iteration 7 of run r has no forest; there are 0 to 1"),
        (("--prompt", "nobody"), "--prompt nobody: no such prompt in iteration 1"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, arguments, fault):
    a_run(tmp_path)
    assert fault in str(view(tmp_path, *arguments).exception)
