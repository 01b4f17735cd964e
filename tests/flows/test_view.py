"""The page of trees in a real browser, without a network; skipped where no Chromium is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from components.params.root import Params
from components.storage import write_sealed, write_text
from components.tracking.viewer import forest_page
from components.tree.forest import Forest
from components.tree.schema import Node, Origin, StopReason
from flows.cli import app
from tasks.inputs import write_forest


def a_forest(count: int) -> Forest:
    """Trees of two rollouts with two turns each; tree k fails throughout where k is a multiple of 3, else is mixed."""
    nodes: list[Node] = []
    for tree in range(count):
        root = len(nodes)
        nodes.append(
            Node(
                tree,
                f"p{tree}",
                root,
                -1,
                0,
                Origin.ROOT,
                observation=f"question {tree}",
                v_hat=tree % 10 / 10,
                allocated=2,
            )
        )
        for sibling in range(2):
            nodes.append(
                Node(
                    tree,
                    f"p{tree}",
                    len(nodes),
                    root,
                    1,
                    Origin.FACTUAL,
                    root,
                    sibling,
                    action="search",
                    observation="seen",
                )
            )
            leaf = Node(tree, f"p{tree}", len(nodes), len(nodes) - 1, 2, Origin.FACTUAL, root, sibling, action="answer")
            leaf.stop_reason, leaf.reward = StopReason.ANSWERED, float(sibling and tree % 3 > 0)
            nodes.append(leaf)
    return Forest(nodes)


@pytest.fixture(scope="module")
def page_of_a_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trees.html"
    path.write_text(forest_page("A thousand trees", a_forest(1000)), encoding="utf-8")
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
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.inner_text("main h2") == "question 1"
    page.keyboard.press("ArrowDown")
    assert page.inner_text("li > div.on").startswith("search")
    page.keyboard.press("/")
    page.keyboard.type("question 7j")
    assert page.inner_text("#count") == "0 of 1000 trees"  # in the field, letters are text
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1


def test_a_tree_shows_outcomes_grants_and_predictions(page):
    page.evaluate("pick(forest.trees.find(tree => tree.prompt === 'p4'))")
    assert page.inner_text("main h2") == "question 4"
    text = page.inner_text("main")
    assert "granted 2 factual rollouts for 0.48" in text
    assert text.count("✓ answered") == 1
    assert text.count("✗ answered") == 1
    assert page.locator("svg g.node").count() == 5


def test_an_address_names_the_tree_that_is_shown_first(browser, page_of_a_thousand):
    shown = browser.new_page(color_scheme="dark")
    shown.goto(page_of_a_thousand.as_uri() + "#p42")
    assert shown.inner_text("main h2") == "question 42"
    ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.close()
    assert ground == "rgb(20, 24, 28)"  # dark where the system is


def a_run(folder: Path) -> None:
    write_sealed(folder / "runs/r/manifest.json", {"run_id": "r"})
    write_text(folder / "runs/r/params.yaml", yaml.safe_dump(Params().model_dump()))
    for number in (0, 1):
        write_forest(folder / f"runs/r/iterations/{number:04d}/forest.parquet", a_forest(3 + number))


def view(folder: Path, *arguments: str):
    return CliRunner().invoke(app, ["view", "r", "--no-open", "--runs-dir", str(folder / "runs"), *arguments])


def test_command_writes_the_newest_forest_and_says_where(tmp_path):
    a_run(tmp_path)
    done = view(tmp_path, "--prompt", "p2")
    page = tmp_path / "runs/r/iterations/0001/trees.html"
    assert done.exit_code == 0, done.output
    assert f"4 trees: {page.as_uri()}#p2" in done.output
    assert "question 3" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--iteration", "7"), "iteration 7 of run r has no forest; there are 0 to 1"),
        (("--prompt", "nobody"), "--prompt nobody: no such prompt in iteration 1"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, arguments, fault):
    a_run(tmp_path)
    assert fault in str(view(tmp_path, *arguments).exception)
