"""`trace report` on tiny runs, and its page in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest
from typer.testing import CliRunner

from components.params.root import Params
from flows.cli import app
from tasks.record import publish_report
from tasks.run import Run
from tests.tasks.pipeline import new_run, train


@pytest.fixture(scope="module")
def run(params: Params, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two iterations; of the first, the forest is removed, as retention does."""
    folder = tmp_path_factory.mktemp("report")
    train(run := new_run(params, folder / "data", folder / "runs"))
    (run.iteration(0) / "forest.parquet").unlink()
    return run


def report(run: Run, *arguments: str):
    return CliRunner().invoke(app, ["report", *arguments, "--no-open", "--runs-dir", str(run.path.parent)])


def test_command_writes_the_page_into_the_run_and_says_where(run):
    for name in ("r", "latest", str(run.path)):
        done = report(run, name)
        assert done.exit_code == 0, done.output
        assert f"2 iterations: {(run.path / 'report.html').as_uri()}" in done.output
    page = (run.path / "report.html").read_text()
    found = (
        "Run r",
        "Where the budget went",
        "continuations after turn 1",
        "1 of the 2 iterations were removed",
        "Stage 2 ",
    )
    for words in (*found, f"{datetime.now():%Y-}", '"gold":'):
        assert words in page


def test_output_goes_elsewhere_and_the_browser_is_opened_unless_told_not_to(run, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    CliRunner().invoke(
        app, ["report", "r", "--runs-dir", str(run.path.parent), "--output", str(page := tmp_path / "x.html")]
    )
    assert opened == [page.as_uri()]
    assert page.exists()
    report(run, "r", "--output", str(page))
    assert len(opened) == 1


def test_a_run_that_has_only_begun_and_one_that_is_not_there_are_named(run, params, tmp_path):
    new_run(params, tmp_path, run.path.parent, "begun")
    assert "run begun has no finished iteration yet" in str(report(run, "begun").exception)
    assert "no run 'nobody'" in str(report(run, "nobody").exception)


def test_what_keeps_the_report_from_being_written_does_not_fail_the_run(params, tmp_path, caplog):
    publish_report(new_run(params, tmp_path, tmp_path))
    assert "no report (UserError: run r has no finished iteration yet" in caplog.text


@pytest.mark.parametrize("command", ["report r --no-open", "view r --no-open", "compare r --baseline trace"])
def test_what_shows_a_run_imports_no_model(run, tmp_path, command):
    """A person waits for it, and a machine that shows runs needs no model library."""
    heavy = {"torch", "transformers", "vllm", "deepspeed", "mlflow", "prefect", "scipy.stats"}
    heavy |= set() if "compare" in command else {"matplotlib"}
    script = f"""
import sys
from flows.cli import app
app({[*command.split(), "--runs-dir", str(run.path.parent)]}, standalone_mode=False)
print(sorted(set(sys.modules) & {heavy}))"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def page(browser, run) -> Iterator:
    assert report(run, "r").exit_code == 0
    shown = browser.new_page(color_scheme="dark")
    faults: list[str] = []
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("console", lambda message: faults.append(message.text))
    shown.goto((run.path / "report.html").as_uri())
    yield shown
    assert faults == []
    shown.close()


def test_figures_and_trees_are_drawn_and_readable_in_the_dark(page):
    assert page.locator("svg.plot").count() > 10
    assert page.locator("article").count() == page.evaluate("forest.trees.length") >= 5
    assert page.locator("article svg.tree g.node").count() == page.locator("article .turns li").count() > 20
    colour = "element => getComputedStyle(element).fill"
    assert page.locator("svg.plot text").first.evaluate(colour) == "rgb(146, 156, 166)"  # light on dark
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_keys_and_links_lead_to_a_tree_and_its_turns(page):
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("article.on h3").inner_text().startswith("2.")
    page.keyboard.press("ArrowDown")
    assert page.locator("article.on .turns div.on .facts").count() == 1
    assert page.locator("article.on .turns > li > div.on").count() == 0  # no more the prompt
    page.keyboard.press("k")
    assert page.locator("article.on h3").inner_text().startswith("1.")
    page.keyboard.press("Escape")
    assert page.locator("article.on").count() == 0
    page.locator("article h3 a").nth(4).click()
    assert page.locator("article.on h3").inner_text().startswith("5.")
    linked = page.url
    page.goto("about:blank")
    page.goto(linked)
    assert page.locator("article.on h3").inner_text().startswith("5.")
